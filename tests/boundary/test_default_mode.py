"""What a run promises when nobody said how its noise is drawn: on one's own data it holds as it stands."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import sordino
from sordino.advice import case
from sordino.comparisons import compare
from sordino.core.errors import SpecError
from sordino.ledger import home
from sordino.runs import build
from sordino.runs.run import execute
from sordino.spec import spec
from sordino.spec.mode import settled
from support.problems import federation, linear, same_weights

KEYS = {"rounds": 2, "epsilon": 4.0, "learning_rate": 0.5, "device": "cpu"}
FILE = KEYS | {"features": "none", "clients": 8}
VOID = "The noise came from a seed: an experiment, void against anyone who knows the seed."


def train(out, **keys):
    return sordino.train(linear(), federation(), out=str(out), **(KEYS | keys))


def on_file(small_npz, **keys):
    """A run on a dataset given by its path."""
    wanted = spec.from_dict(FILE | {"dataset": str(small_npz), "out": str(small_npz.parent / "runs")} | keys)
    return execute(build.from_spec(wanted), own_model=False)


def flags(keys):
    return [text for k, v in keys.items() for text in (f"--{k.replace('_', '-')}", str(v))]


def stored(folder):
    return tomllib.loads((folder / "private" / "spec.toml").read_text())


def plans(ledger):
    """Every plan in a ledger: epsilon, delta, unit, relation and viewer."""
    book = sqlite3.connect(ledger)
    try:
        asked = "SELECT epsilon, delta, unit, relation, viewer FROM entry WHERE kind = 'plan' ORDER BY id"
        return book.execute(asked).fetchall()
    finally:
        book.close()


# --- own data


def test_python_callers_draw_from_the_operating_system(tmp_path):
    one, other = (train(tmp_path, name=n) for n in "ab")
    assert not same_weights(one.model, other.model)
    for found in (one, other):
        sentence = found.guarantee.sentence()
        assert found.guarantee.mode == "secure" and "seed" not in sentence and "operating system" in sentence
        assert stored(found.folder)["mode"] == "secure" and "seed" not in stored(found.folder)
        assert json.loads((found.folder / "public" / "plan.json").read_text())["mode"] == "secure"


def test_a_file_by_its_path_draws_from_the_operating_system(small_npz):
    one, other = (on_file(small_npz, name=n) for n in "ab")
    assert not same_weights(one.model, other.model)
    assert "seed" not in one.guarantee.sentence() and stored(one.folder)["mode"] == "secure"


def test_the_command_draws_from_the_operating_system(small_npz, sordino_command):
    here, models = small_npz.parent, []
    for name in "ab":
        done = sordino_command("run", *flags(FILE | {"dataset": "small.npz", "name": name}), cwd=here)
        assert done.returncode == 0, done.stderr
        assert "secure mode" in done.stdout and "seed" not in done.stdout
        models.append((here / "runs" / name / "public" / "model.safetensors").read_bytes())
    assert models[0] != models[1]
    done = sordino_command("run", *flags(FILE | {"dataset": "small.npz", "name": "c", "seed": 3}), cwd=here)
    assert "research mode" in done.stdout and VOID in done.stdout


@pytest.mark.parametrize("keys", [{"seed": 0}, {"seed": 2**50}, {"mode": "research"}], ids=str)
def test_a_seed_is_a_choice_that_the_sentence_speaks_of(keys, tmp_path):
    one, other = (train(tmp_path, name=n, **keys) for n in "ab")
    assert same_weights(one.model, other.model)
    assert VOID in one.guarantee.sentence() and stored(one.folder)["mode"] == "research"


def test_the_default_seed_of_research_is_nought(tmp_path):
    assert same_weights(train(tmp_path, name="a", mode="research").model, train(tmp_path, name="b", seed=0).model)


def test_secure_with_a_seed_is_refused(tmp_path):
    with pytest.raises(SpecError, match="a secure run accepts no seed"):
        train(tmp_path, mode="secure", seed=0)
    assert not any(tmp_path.iterdir())


def test_research_on_own_data_is_charged_like_any_other_run(tmp_path):
    train(tmp_path, name="a")
    train(tmp_path, name="b", seed=1)
    secure, research = plans(home.registry())
    assert secure == research and 3.99 < research[0] <= 4.0


def test_a_resumed_run_keeps_its_mode(tmp_path):
    for name, keys in (("a", {}), ("b", {"seed": 1})):
        first = train(tmp_path, name=name, **keys)
        again = sordino.train(linear(), federation(), resume=first.folder)
        assert again.guarantee == first.guarantee
        assert again.guarantee.mode == ("research" if keys else "secure")


def test_what_is_checked_before_a_run_has_the_mode_of_the_run():
    wanted = spec.from_dict(KEYS)
    assert wanted.mode is None and case.of_parts(wanted, linear(), federation()).spec.mode == "secure"
    assert build.build(wanted, linear(), federation()).mode == "secure"
    seeded = spec.from_dict(KEYS | {"seed": 5})
    assert case.of_parts(seeded, linear(), federation()).spec.mode == "research"


# --- shipped benchmarks


def test_benchmarks_stay_research(data_file):
    folder = data_file("breast_cancer_wdbc/breast_cancer.csv.gz").parents[1]
    keys = KEYS | {"dataset": "breast-cancer", "data_dir": str(folder), "clients": 5}
    found = build.from_spec(spec.from_dict(keys))
    assert found.spec.mode == "research" and found.spec.seed is None and VOID in found.promise.sentence()
    assert build.from_spec(spec.from_dict(keys | {"mode": "secure"})).spec.mode == "secure"


def test_ones_own_file_that_is_said_to_be_public_is_like_a_benchmark(small_npz):
    keys = FILE | {"dataset": str(small_npz)}
    assert build.from_spec(spec.from_dict(keys)).spec.mode == "secure"
    assert build.from_spec(spec.from_dict(keys | {"public_data": True})).spec.mode == "research"


@pytest.mark.parametrize(
    ("keys", "public", "mode"),
    [
        ({}, False, "secure"),
        ({}, True, "research"),
        ({"seed": 1}, False, "research"),
        ({"seed": 1}, True, "research"),
        ({"mode": "secure"}, True, "secure"),
        ({"mode": "research"}, False, "research"),
    ],
)
def test_what_was_said_wins_over_the_default(keys, public, mode):
    assert settled(spec.from_dict(keys), public).mode == mode


# --- comparisons


def test_a_comparison_shows_its_total_before_the_first_cell(small_npz, monkeypatch, capsys):
    from sordino.cli.main import main

    monkeypatch.chdir(small_npz.parent)
    shown, real = [], compare.execute

    def spy(folder, *args):
        shown.append(capsys.readouterr())
        assert not home.registry().exists() and not (folder.path / "cells").exists()
        return real(folder, *args)

    monkeypatch.setattr(compare, "execute", spy)
    keys = {k: v for k, v in FILE.items() if k != "epsilon"} | {"dataset": "small.npz", "name": "it", "seeds": 2}
    methods = "dp-sgd,dp-fedavg,none,nbafl-paper"
    monkeypatch.setattr(
        "sys.argv", ["sordino", "compare", "--methods", methods, "--epsilon", "1,2", "--json", *flags(keys)]
    )
    main()
    before, after = shown[0], capsys.readouterr()
    assert before.out == "" and before.err.count("\n") == 1
    told = json.loads(after.out)["charged"]
    assert before.err.strip() == told["sentence"] and "void against anyone who knows the seeds" in before.err
    folder = small_npz.parent / "runs" / "it"
    assert told["ledger"] in before.err and Path(told["ledger"]).samefile(home.registry())
    assert told["runs"] == 14 and told["begun"] == 0 and "14 runs are charged" in before.err
    assert told["without_guarantee"] == {"runs": 2, "methods": ["none"]}
    page = (folder / "public" / "table.md").read_text()  # with the sums, without the owner's paths
    assert "14 runs are charged to them: 4 with at most epsilon = 6" in page and "ledger.sqlite" not in page

    charged = defaultdict(list)
    for epsilon, delta, *view in plans(home.registry()):
        if epsilon is not None and np.isfinite(epsilon):
            charged[tuple(view)].append((epsilon, delta))
    assert len(told["totals"]) == len(charged) == 3
    for total in told["totals"]:
        found = np.array(charged[total["unit"], total["relation"], total["viewer"]])
        assert total["runs"] == len(found) == 4 and total["delta"] == pytest.approx(found[:, 1].sum())
        assert found[:, 0].sum() <= total["epsilon"] * (1 + 1e-12)  # never more than was said
        assert total["epsilon"] == pytest.approx(found[:, 0].sum(), rel=1e-3)  # and not much less


def test_a_comparison_that_goes_on_says_what_was_begun(small_npz, sordino_command):
    keys = {k: v for k, v in FILE.items() if k != "epsilon"} | {"dataset": "small.npz", "name": "it", "seeds": 1}
    call = ("compare", "--methods", "dp-sgd", "--epsilon", "2", *flags(keys))
    first, again = (sordino_command(*call, cwd=small_npz.parent).stderr for _ in range(2))
    assert f"1 run is charged to {home.registry()}: 1 with" in first and "ledger.sqlite (1 begun before)" in again


def test_a_comparison_on_a_benchmark_has_nothing_to_announce(data_file, tmp_path, sordino_command):
    folder = data_file("breast_cancer_wdbc/breast_cancer.csv.gz").parents[1]
    keys = {"dataset": "breast-cancer", "data_dir": folder, "clients": 5, "rounds": 1, "device": "cpu", "seeds": 1}
    done = sordino_command("compare", "--methods", "dp-sgd", "--json", *flags(keys), cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "" and json.loads(done.stdout)["charged"] is None


def test_a_secure_comparison_is_refused_with_what_to_do(small_npz):
    with pytest.raises(SpecError, match=r"every cell with a seed.*accepts none.*one by one with `sordino run`"):
        compare.cells(["dp-sgd"], [1.0], 1, {"dataset": str(small_npz), "mode": "secure"}, {})


# --- no baseline beside a promise


def test_a_baseline_on_own_data_is_refused_and_nothing_is_charged(small_npz, sordino_command):
    here = small_npz.parent
    before = sorted(here.iterdir())
    done = sordino_command("run", *flags(FILE | {"dataset": "small.npz"}), "--baseline", cwd=here)
    assert done.returncode == 2 and done.stderr.startswith("sordino: SpecError: baseline = true")
    assert done.stderr.count("\n") == 1 and "method = none" in done.stderr and "nothing is protected" in done.stderr
    assert sorted(here.iterdir()) == before  # neither folder nor ledger
    done = sordino_command("run", *flags(FILE | {"dataset": "small.npz", "method": "none"}), "--baseline", cwd=here)
    assert done.returncode == 0 and "No guarantee" in done.stdout  # it is what it says


def test_a_check_finds_the_baseline_that_a_run_refuses(small_npz, sordino_command):
    (small_npz.parent / "it.toml").write_text(
        'dataset = "small.npz"\nclients = 8\nfeatures = "none"\nbaseline = true\n'
    )
    done = sordino_command("check", "it.toml", cwd=small_npz.parent)
    assert done.returncode == 1 and "broken: baseline = true" in done.stdout and "the run is refused" in done.stdout


# --- a delta that permits to publish somebody


@pytest.mark.parametrize(
    ("keys", "units"),
    [
        ({"method": "dp-sgd"}, "96 records"),
        ({"method": "dp-fedavg"}, "8 clients"),
        ({"method": "dp-sgd", "unit": "user"}, "24 users"),
        ({"method": "dp-fedavg", "unit": "user"}, "24 users"),
        ({"method": "dp-sgd", "validation": 0.25}, "96 records"),  # who is held out is protected too
    ],
    ids=str,
)
def test_a_delta_that_is_not_below_one_in_n_is_noted(keys, units, tmp_path):
    if "unit" in keys:
        keys = keys | {"users": [np.arange(12) // 4 + 3 * k for k in range(8)]}
    n = int(units.split()[0])
    bad = train(tmp_path, delta=1 / n, **keys)
    (note,) = [text for text in bad.notes if text.startswith("delta = ")]
    said = "one over the number of users:" if "unit" in keys else f"1/{n} for {units}:"  # how many users may be private
    assert f"is not below {said}" in note and "Use delta well below" in note
    assert json.loads((bad.folder / "public" / "result.json").read_text())["notes"] == list(bad.notes)
    good = train(tmp_path, delta=0.99 / n, **keys)
    assert not [text for text in good.notes if text.startswith("delta = ")]


def test_without_privacy_no_delta_is_noted(tmp_path):
    assert train(tmp_path, method="none", delta=0.5).notes == ()


def test_where_noise_dies_with_the_process_a_secure_run_says_so(tmp_path):
    said = [text for text in train(tmp_path, method="dp-ftrl").notes if "must start anew" in text]
    assert len(said) == 1 and not [t for t in train(tmp_path, method="dp-ftrl", seed=0).notes if "must start anew" in t]
