"""`sordino datasets`: complete, and true about where things are."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sordino.cli.datasets import datasets
from sordino.core import plugin
from sordino.core.errors import DataError


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SORDINO_DATA", raising=False)

    def run(*args):
        done = CliRunner().invoke(datasets, args, catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    return run


def test_all_are_listed_with_what_they_are(call):
    rows = {row["dataset"]: row for row in json.loads(call("--json"))}
    assert sorted(rows) == plugin.available("data.sets")
    assert rows["mnist"]["where"] == "package" and rows["mnist"]["bytes"] == 9_477_731 and rows["mnist"]["how"] is None
    for name, row in rows.items():
        assert row["licence"] and row["train"] > row["test"] > 0
        assert row["task"] in ("classification", "regression", "next-token")
        if name not in ("mnist", "breast-cancer"):
            assert row["where"] == "not here" and row["bytes"] is None and row["how"].startswith("Put ")
    assert "SUBSET" in rows["femnist-digits"]["note"] and rows["femnist-digits"]["clients"] == 12
    assert {n for n, r in rows.items() if r["downloads"]} == {
        "adult", "breast-cancer", "cifar10", "credit-default", "fashion-mnist",
    }  # fmt: skip


def test_the_table_says_how_to_get_what_is_not_here(call, tmp_path):
    text = call("--data-dir", str(tmp_path))
    assert "omniglot cannot be downloaded. Put omniglot_small_28.npz into" in text
    assert str(tmp_path / "omniglot_small") in text
    assert (
        "adult is downloaded when it is first used; you can also add it yourself. Put adult.data, adult.test into"
        in text
    )
    assert "SUBSET" in text and "9.48 MB  package" in text


def test_a_data_folder_is_found_with_sizes(call, data_file):
    path = data_file("omniglot_small/omniglot_small_28.npz")
    rows = {row["dataset"]: row for row in json.loads(call("--json", "--data-dir", str(path.parent.parent)))}
    found = rows["omniglot"]
    assert found["where"] == "data folder" and found["bytes"] == path.stat().st_size
    assert [Path(f) for f in found["files"]] == [path]


def test_a_table_is_copied_once(call, tmp_path):
    path = tmp_path / "patients.csv"
    assert "569 records of breast-cancer" in call("--copy", "breast-cancer", str(path))
    before = path.read_bytes()
    assert before.startswith(b"mean radius,") and before.count(b"\n") == 570
    for wanted, match in ((("breast-cancer", str(path)), "exists"), (("mnist", str(tmp_path / "m.csv")), "one CSV")):
        with pytest.raises(DataError, match=match):
            call("--copy", *wanted)
    assert path.read_bytes() == before and not (tmp_path / "m.csv").exists()
