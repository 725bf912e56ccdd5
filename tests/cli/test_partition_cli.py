"""`sordino partition show`: the counts are the partition's."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from sordino.cli.partition import NOTICE, partition
from sordino.core.errors import DataError, RunError, SpecError
from sordino.core.rng import Stream
from sordino.data.partition import dirichlet

Y = np.arange(400) % 4


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    arrays = {"x_train": draw.normal(size=(400, 2)), "x_test": draw.normal(size=(8, 2)), "classes": np.array(4)}
    np.savez(tmp_path / "it.npz", y_train=Y, y_test=Y[:8], **arrays)
    np.savez(tmp_path / "wind.npz", y_train=draw.uniform(size=400), y_test=draw.uniform(size=8), **arrays)
    return tmp_path


def call(folder, *args, dataset="it.npz"):
    done = CliRunner().invoke(partition, ["show", "--dataset", dataset, "--data-dir", str(folder), *args])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_the_counts_are_those_of_the_partition(folder):
    line = ("--partition", "dirichlet:0.3", "--clients", "6", "--seed", "3", "--json")
    found = json.loads(call(folder, *line))
    parts = dirichlet(Y, 6, 0.3, Stream.research(3).at("partition"))
    assert found["sizes"] == [len(p) for p in parts] and found["labels"] == ["0", "1", "2", "3"]
    assert found["counts"] == [np.bincount(Y[p], minlength=4).tolist() for p in parts]
    assert found["notice"] == NOTICE and found == json.loads(call(folder, *line))


def test_the_map_is_dark_where_records_are(folder):
    text = call(folder, "--partition", "shards:1", "--clients", "4")
    rows = [line for line in text.splitlines() if line.strip()[:1].isdigit()]
    header = text.splitlines()[1]
    assert len(rows) == 4 and all(row.count("██") == 1 for row in rows)
    assert sorted(row.index("██") for row in rows) == [header.index(f" {i} ") + 1 for i in range(4)]
    assert NOTICE in text and "at least 100, median 100, at most 100" in text


def test_decimal_targets_are_counted_in_bins_and_many_clients_are_cut(folder):
    text = call(folder, "--partition", "iid", "--clients", "100", dataset="wind.npz")
    assert "... and 40 more clients" in text and "Labels: 0 " in text
    found = json.loads(call(folder, "--partition", "iid", "--clients", "100", "--json", dataset="wind.npz"))
    assert np.sum(found["counts"]) == 400 and np.shape(found["counts"]) == (100, 10)


def test_a_picture_is_written(folder):
    text = call(folder, "--partition", "quantity:0.5", "--clients", "5", "--plot", str(folder / "it.png"))
    assert (folder / "it.png").read_bytes()[:4] == b"\x89PNG" and "Drawn in" in text


@pytest.mark.parametrize(
    ("args", "error", "match"),
    [
        (("--partition", "nothing"), SpecError, "unknown partition"),
        (("--partition", "natural"), DataError, "no clients of its own"),
        (("--partition", "iid", "--clients", "401"), DataError, "cannot give each"),
        (("--partition", "iid", "--clients", "0"), SpecError, "clients must be at least 1"),
        (("--partition", "iid", "--seed", "-1"), SpecError, "seed"),
        (("--partition", "iid", "--plot", "it.txt"), SpecError, "--plot writes"),
        (("--partition", "iid", "--plot", "nowhere/it.png"), RunError, "no folder"),
    ],
)
def test_mistakes_are_one_line(args, error, match, folder):
    with pytest.raises(error, match=match) as found:
        call(folder, *args)
    assert "\n" not in str(found.value)
