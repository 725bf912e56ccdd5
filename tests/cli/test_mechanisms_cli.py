"""`sordino mechanisms`: complete, and true."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import sordino
from sordino.cli import catalogue
from sordino.cli.main import cli
from sordino.core.errors import SpecError

FOLDER = Path(sordino.__file__).parent / "privacy" / "mechanisms"


def call(line):
    done = CliRunner().invoke(cli, shlex.split(line))
    if done.exception is not None:
        raise done.exception
    return done.output


@pytest.fixture(scope="module")
def rows():
    return {row["mechanism"]: row for row in json.loads(call("mechanisms --json"))}


def test_the_mechanisms_are_the_files_and_no_helper(rows):
    files = {p.stem.replace("_", "-") for p in FOLDER.glob("*.py") if not p.stem.startswith("_")}
    assert set(rows) == files and {"gaussian", "laplace", "rappor", "tree", "noisy-max"} <= files
    for one in catalogue.mechanisms().values():
        assert hasattr(one.cls, "event") and one.cls.__module__.endswith(one.name.replace("-", "_"))


def test_every_row_says_all(rows):
    for row in rows.values():
        assert row["summary"] and row["geometry"] and row["known"] and row["noise"] in ("exact", "float")
        assert row["finds"] in {p["flag"].removeprefix("--") for p in row["parameters"]}
        for p in row["parameters"]:
            assert p["help"], (row["mechanism"], p["flag"])
            assert p["required"] or p["type"] in ("float", "int", "bool", "str")


@pytest.mark.parametrize(
    ("name", "geometry", "noise", "relation", "finds"),
    [
        ("gaussian", "L2", "float", "add/remove", "noise"),
        ("rounded-gaussian", "L2", "exact", "add/remove", "noise"),
        ("laplace", "L1 or L2", "float", "add/remove", "noise"),
        ("staircase-ball", "L1", "float", "add/remove", "local-epsilon"),
        ("exponential", "L-infinity", "float", "add/remove", "local-epsilon"),
        ("sparse-vector", "L-infinity", "float", "add/remove", "local-epsilon"),
        ("skellam", "integers, L1 and L2", "exact", "add/remove", "mu"),
        ("discrete-gaussian", "integers, L2", "exact", "add/remove", "noise"),
        ("poisson-binomial", "L-infinity", "exact", "replace", "theta"),
        ("randomized-response", "one value a report", "exact", "replace", "local-epsilon"),
        ("piecewise", "one value a report", "float", "replace", "local-epsilon"),
        ("rappor", "one value a report", "exact", "replace", "blur"),
    ],
)
def test_what_is_said_of_some(name, geometry, noise, relation, finds, rows):
    row = rows[name]
    assert (row["geometry"], row["noise"], row["relation"], row["finds"]) == (geometry, noise, relation, finds)


def test_what_is_known(rows):
    assert rows["gaussian"]["known"] == ["gdp", "rho", "pair", "renyi"]
    assert rows["laplace"]["known"] == ["pure", "rho", "pair", "renyi"]
    assert "pure" not in rows["skellam"]["known"] and "renyi" in rows["skellam"]["known"]
    assert rows["binomial"]["known"] == ["pair"]


def test_every_example_runs(rows):
    for row in rows.values():
        line = row["example"].removeprefix("sordino ") + " --json"
        assert json.loads(call(line))["epsilon"] > 0


def test_parameters_are_flags_with_the_comments_of_the_source(rows):
    laplace = {p["flag"]: p for p in rows["laplace"]["parameters"]}
    assert laplace["--norm"] == {
        "flag": "--norm",
        "type": "float",
        "required": False,
        "default": 1,
        "help": "the norm rows are clipped in: 1 (pure DP) or 2 (zCDP)",
    }
    flags = {word for word in call("epsilon --help").replace("/", " ").split() if word.startswith("--")}
    assert {p["flag"] for row in rows.values() for p in row["parameters"]} <= flags
    assert "--local-epsilon" in flags and "--epsilon" not in flags


def test_people_see_the_list_and_all_of_one():
    out = call("mechanisms")
    assert "gaussian: Add N(0," in out and "  L2; known: gdp, rho, pair, renyi; float noise" in out
    assert "--norm" in out and "the norm rows are clipped in" in out
    one = call("mechanisms tree")
    assert "DP under continual observation" in one and "separation" in one and "finds --noise" in one
    assert "gaussian" not in one.split("sordino epsilon")[0].split(":")[0]


def test_an_unknown_name_is_told_its_nearest():
    with pytest.raises(SpecError, match="Did you mean 'skellam'"):
        call("mechanisms skelam")
