"""Sites with files of their own: a run file names no data, every site reads its own table by one public schema."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.support.sites import OPEN, local_sites
from tests.support.tables import SCHEMA, people

from sordino.deploy.agreement import public_keys

pytest.importorskip("flwr")

RUN_FILE = """
dataset = "{dataset}"
label_column = "ill"
schema = "schema.toml"
method = "dp-sgd"
rounds = 2
epsilon = 4.0
clients = 3
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_HOME", str(tmp_path / "home"))


def test_three_tables_are_trained_on_and_no_benchmark_stands_in_for_them(tmp_path: Path) -> None:
    from sordino.deploy import server

    app = tmp_path / "app"
    app.mkdir()
    (app / "spec.toml").write_text(RUN_FILE.format(dataset="patients.csv"))
    (app / "schema.toml").write_text(SCHEMA + '[ill]\nvalues = ["no", "yes"]\n')
    tables = [tmp_path / f"{i}.csv" for i in range(3)]
    for i, path in enumerate(tables):
        people(60 + i, seed=i).drop(columns="score").to_csv(path, index=False)
    post = local_sites(tmp_path / "sites", [str(path) for path in tables], policy=OPEN)
    result = server.serve(post, post.roster, app, tmp_path / "runs", {"name": "it"})
    spec = tomllib.loads((tmp_path / "runs" / "it" / "public" / "spec.toml").read_text())
    assert spec["dataset"] == "own-data"  # it was that of the first benchmark, whose test records do not fit
    assert spec["mode"] == "secure"
    assert result.guarantee.epsilon <= 4.0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('dataset = "adult"', "adult"),
        ("", "mnist"),
        ('dataset = "here/mnist"', "own-data"),
        ('dataset = "x.csv"', "own-data"),
    ],
)
def test_an_agreement_names_a_benchmark_only_if_the_run_file_does(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "spec.toml").write_text(text + "\nclients = 3\n")
    assert public_keys(tmp_path / "spec.toml")["dataset"] == name
