"""Cells, their folder, and what goes on after a comparison died."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from multiprocessing import active_children

import pytest

from sordino.comparisons import compare
from sordino.core import faults
from sordino.core.errors import BudgetError, DataError, RunError, SpecError
from sordino.core.types import Batch
from sordino.federations.simulator import Simulator
from sordino.ledger.ledger import Budget, Ledger
from sordino.report.cells import read
from sordino.report.summary import blocks, lines
from sordino.report.tables import cell_row, to_csv
from sordino.runs import build
from sordino.runs.head import absolute
from sordino.spec import spec
from support.killed import Killed
from support.problems import charges, registry

EASY = {"features": "none", "clients": 8, "rounds": 4, "learning_rate": 0.5, "device": "cpu", "checkpoint_seconds": 0.0}
# has a price of its own, which a small epsilon cannot pay
CHARGED = {"validation": 0.25, "evaluate_on": "validation", "evaluate_every": 1, "release_noise": 20.0}


@pytest.fixture
def made(small_npz):
    """made("none,dp-sgd", [2.0], 1, rounds=3): cells on the small dataset; `own` by method."""

    def make(methods, epsilons=(2.0,), seeds=1, own=None, **more):
        common = EASY | {"dataset": str(small_npz)} | more
        return compare.cells(methods.split(","), list(epsilons), seeds, common, own or {})

    return make


def names(found):
    return [c.name for c in found]


def csv_of(folder, failures):
    """results.csv without the one column that no two runs share."""
    rows = [cell_row(c) for c in read(folder.path, failures)]
    for row in rows:
        del row["seconds"]
    return to_csv(rows)


def run(tmp_path, name, found, jobs=1):
    news = []
    folder = compare.open_folder(str(tmp_path), name, found)
    try:
        return folder, compare.execute(folder, found, jobs, news.append), news
    finally:
        folder.close()


# --- which cells


def test_a_cell_is_a_method_an_epsilon_and_a_seed(made):
    found = made("none,dp-sgd,dp-fedavg", (0.5, 8.0), 2)
    assert sorted(names(found)) == sorted(
        ["none-seed0", "none-seed1"]  # nothing to ask for: once a seed
        + [f"{m}-eps{e}-seed{s}" for m in ("dp-sgd", "dp-fedavg") for e in ("0.5", "8") for s in (0, 1)]
    )
    assert [c.seed for c in found] == [0] * 5 + [1] * 5  # one seed of everything before the next
    for cell in found:
        assert cell.spec.seed == cell.seed and cell.spec.method == cell.method
        assert cell.spec.rounds == 4 and cell.spec.clients == 8
    assert {c.spec.epsilon for c in found if c.method == "dp-sgd"} == {0.5, 8.0}


def test_a_paper_form_takes_an_epsilon_though_it_is_not_private(made, monkeypatch):
    from sordino.methods.dp_sgd import DpSgd

    assert not compare.takes_epsilon("none") and compare.takes_epsilon("dp-sgd")
    monkeypatch.setattr(DpSgd, "private", False)
    assert not compare.takes_epsilon("dp-sgd")
    monkeypatch.setattr(DpSgd, "claim", lambda self, plan: None, raising=False)
    assert compare.takes_epsilon("dp-sgd")


@pytest.mark.parametrize("pair", [(0.1, 0.1 + 1e-12), (1e22, 1e21)])
def test_different_epsilons_have_different_folders(made, pair):
    found = made("dp-sgd", pair)
    assert len(set(names(found))) == 2
    assert all(compare.spec.NAME.match(n) for n in names(found))


def test_a_key_goes_to_those_that_have_it(made):
    found = {c.method: dict(c.spec.options) for c in made("none,dp-sgd,dp-fedavg", quantile=0.7, clip=0.3)}
    assert found == {"none": {}, "dp-sgd": {"clip": 0.3}, "dp-fedavg": {"clip": 0.3, "quantile": 0.7}}


def test_a_key_of_the_algorithm_goes_to_all(made):
    found = made("none,dp-sgd", algorithm="fedprox", mu=0.4)
    assert all(dict(c.spec.options)["mu"] == 0.4 for c in found)


def test_one_method_may_have_its_own_value(made):
    found = {c.method: c.spec for c in made("dp-sgd,dp-fedavg", own={"dp-sgd": {"clip": 0.5, "rounds": 9}}, clip=2.0)}
    assert dict(found["dp-sgd"].options)["clip"] == 0.5 and dict(found["dp-fedavg"].options)["clip"] == 2.0
    assert (found["dp-sgd"].rounds, found["dp-fedavg"].rounds) == (9, 4)


@pytest.mark.parametrize(
    ("methods", "epsilons", "more", "words"),
    [
        ("none", (2.0,), {"clip": 1.0}, ["none of none has a key 'clip'", "dp-sgd"]),
        ("dp-sgd", (2.0,), {"quantile": 0.5}, ["quantile", "dp-fedavg"]),
        ("dp-sgd,dp-sgd", (2.0,), {}, ["dp-sgd twice"]),
        ("dp-sgd", (2.0, 2.0), {}, ["2.0 twice"]),
        ("dp-sgd", (0.0,), {}, ["epsilon must be positive"]),
        ("dp-sgd", (float("inf"),), {}, ["epsilon must be finite"]),
        ("dp-sdg", (2.0,), {}, ["dp-sgd"]),
        ("dp-sgd", (2.0,), {"mode": "secure"}, ["seed", "secure"]),
        ("dp-sgd", (2.0,), {"own": {"dp-sgd": {"delta": 1e-3}}}, ["dp-sgd.delta", "same for all"]),
        ("dp-sgd", (2.0,), {"own": {"dp-sgd": {"clients": 4}}}, ["dp-sgd.clients", "same for all"]),
        ("dp-sgd", (2.0,), {"own": {"dp-sgd": {"quantile": 0.5}}}, ["quantile", "dp-fedavg"]),
        ("dp-sgd", (2.0,), {"clip": -1.0}, ["clip must be positive"]),
        ("dp-sgd", (2.0,), {"seeds": 0}, ["seeds must be at least 1"]),
    ],
)
def test_bad_input_is_one_clear_error(made, methods, epsilons, more, words):
    with pytest.raises(SpecError) as caught:
        made(methods, epsilons, **more)
    assert all(w in str(caught.value) for w in words) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "kind", "words"),
    [
        ({"dataset": "nowhere.npz"}, DataError, "nowhere.npz"),
        ({"unit": "client"}, SpecError, "dp-sgd: dp-sgd does not go with"),
        ({"batch_size": 50}, SpecError, "dp-sgd: batch_size 50 is larger"),
        ({"method": "dp-fedavg", "viewer": "server"}, BudgetError, "dp-fedavg: "),
    ],
)
def test_what_cannot_run_is_refused_before_there_is_a_folder(made, more, kind, words):
    with pytest.raises(kind, match=words):
        compare.sketch(made(more.pop("method", "dp-sgd"), (0.5, 8.0), **more))


def test_a_small_epsilon_is_a_result_not_a_mistake(made):
    compare.sketch(made("dp-sgd", (0.01, 8.0), **CHARGED))
    with pytest.raises(BudgetError, match="dp-sgd: evaluations"):
        compare.sketch(made("dp-sgd", (0.01, 0.02), **CHARGED))


# --- the folder


def test_the_same_comparison_goes_on_and_another_is_refused(made, tmp_path):
    folder = compare.open_folder(str(tmp_path), "it", made("none,dp-sgd", (2.0, 8.0), 2))
    with pytest.raises(RunError, match="in use"):
        compare.open_folder(str(tmp_path), "it", made("none,dp-sgd", (2.0, 8.0), 2))
    folder.close()
    compare.open_folder(str(tmp_path), "it", made("none,dp-sgd", (2.0, 8.0), 2)).close()
    for other, words in [
        (made("none,dp-sgd", (2.0, 8.0), 3), "other epsilons or seeds"),
        (made("none,dp-sgd", (2.0,), 2), "other epsilons or seeds"),
        (made("none", (2.0, 8.0), 2), "methods none, dp-sgd"),
        (made("none,dp-sgd", (2.0, 8.0), 2, own={"dp-sgd": {"clip": 0.1}}), "dp-sgd with clip = None, not 0.1"),
        (made("none,dp-sgd", (2.0, 8.0), 2, rounds=5), "rounds = 4, not 5"),
    ]:
        with pytest.raises(RunError, match=words):
            compare.open_folder(str(tmp_path), "it", other)


def test_a_file_that_changed_makes_another_comparison_and_a_key_that_is_new_does_not(made, tmp_path):
    budgets = tmp_path / "budgets.csv"
    budgets.write_text("client,epsilon\n" + "".join(f"{k},{1 + k}\n" for k in range(8)))
    found = made("dp-sgd", (8.0,), 1, budgets=str(budgets))
    compare.open_folder(str(tmp_path), "it", found).close()
    path = tmp_path / "it" / "private" / "comparison.json"
    held = json.loads(path.read_text())
    del held["methods"]["dp-sgd"]["compile"], held["files"]  # as an earlier version wrote it
    path.write_text(json.dumps(held))
    compare.open_folder(str(tmp_path), "it", found).close()
    budgets.write_text(budgets.read_text().replace("7,8", "7,4"))
    with pytest.raises(RunError, match=r"budgets.csv has changed since"):
        compare.open_folder(str(tmp_path), "it", found)


def test_text_longer_than_a_file_name_is_no_file_and_a_file_is_known_by_its_hash(made, small_npz):
    budgets = ",".join(f"{0.5 + k / 100:.2f}:0.02" for k in range(50))
    found = compare.canonical(made("dp-sgd", budgets=budgets, private_data="label:" + ",".join(map(str, range(95)))))
    assert found["files"] == {str(small_npz): hashlib.sha256(small_npz.read_bytes()).hexdigest()}
    assert absolute(spec.from_dict({"budgets": budgets})).budgets == budgets


def test_a_folder_that_is_no_comparison_is_left_alone(made, tmp_path):
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="holds no comparison"):
        compare.open_folder(str(tmp_path), "it", made("none"))
    assert [p.name for p in (tmp_path / "it").iterdir()] == ["mine.txt"]
    (tmp_path / "it" / "mine.txt").unlink()
    compare.open_folder(str(tmp_path), "it", made("none")).close()  # one that died before it wrote anything


# --- running


class Seen:
    """What one cell after the other began with, whom it drew, and which records each client's batches had."""

    def __init__(self, monkeypatch):
        self.first, self.cohorts, self.batches, self.asking = [], [], [], False
        real, pick = Simulator.ask, Batch.pick

        def ask(federation, phase, state, cohort):
            if state.round == 0:
                self.first.append(state.params.tolist())
                self.cohorts.append([])
                self.batches.append([])
            self.cohorts[-1].append(list(cohort))
            self.asking = True  # else it is a rehearsal, with made-up records
            try:
                return real(federation, phase, state, cohort)
            finally:
                self.asking = False

        def picked(batch, index, sizes):
            if self.asking:
                at = zip(self.cohorts[-1][-1], batch.x[index].split(list(sizes)), strict=True)
                self.batches[-1].append([(client, x.tolist()) for client, x in at])
            return pick(batch, index, sizes)

        monkeypatch.setattr(Simulator, "ask", ask)
        monkeypatch.setattr(Batch, "pick", picked)


def test_cells_share_one_ledger_and_all_that_the_seed_draws(made, tmp_path, monkeypatch):
    keys = {"model": "mlp", "partition": "dirichlet:0.5", "public_data": True}
    keys |= {"client_rate": 0.5, "batch_rate": 0.5, "local_steps": 3}
    found, seen = made("none,dp-sgd,dp-fedavg,geodp", (4.0,), 2, **keys), Seen(monkeypatch)
    folder, failures, news = run(tmp_path, "it", found)
    assert not failures and [n.cell for n in news if n.kind == "done"] == names(found)
    assert [(n.round, n.rounds) for n in news if n.kind == "round" and n.cell == "none-seed0"] == [
        (r, 4) for r in (1, 2, 3, 4)
    ]
    at = {c.name: folder.path / "cells" / c.name for c in found}
    found_at = {json.loads((at[n] / "private" / "ledger.json").read_text())["path"] for n in at}
    assert found_at == {None}  # these data are one's own
    assert registry().is_file() and not (folder.path / "ledger.sqlite").exists()
    assert all(charges(path) == [0, 1, 2, 3] for path in at.values())
    parts = [(c.x.tolist(), c.all_sizes().tolist()) for c in (build.from_spec(c.spec).federation.data for c in found)]
    for drawn in (parts, seen.first, seen.cohorts):  # of four methods with one seed, then with the other
        assert len(drawn) == 8 and drawn[0] != drawn[4]
        assert drawn == [drawn[0]] * 4 + [drawn[4]] * 4
    assert all(0 < len(cohort) < 8 for cohort in seen.cohorts[0])
    order = seen.batches
    for none, dp_sgd in ((0, 1), (4, 5)):  # shuffled passes, as dp-fedavg has; Poisson batches, as geodp has
        assert order[none] == order[none + 2] != order[dp_sgd] == order[dp_sgd + 2]
        assert len(order[none]) == len(order[dp_sgd]) == 4 * 3
    assert order[0] != order[4] and order[1] != order[5]


def test_what_a_budget_refuses_is_told_to_the_owner_and_not_to_the_tables(made, tmp_path):
    book = Ledger(registry())
    book.set_budget(Budget(3.0, 1e-3, "plans", None))
    book.close()
    folder, failures, _ = run(tmp_path, "it", made("dp-sgd", (2.0,), 2))
    assert list(failures) == ["dp-sgd-eps2-seed1"]
    assert failures["dp-sgd-eps2-seed1"].startswith("BudgetError: a budget in the ledger does not cover it")
    told = (folder.private / "notes.txt").read_text()
    assert "dp-sgd-eps2-seed1: " in told and "left: epsilon 1" in told and "96 of 96 records are known" in told


def test_a_shipped_benchmark_has_a_ledger_of_the_comparison(tmp_path):
    keys = EASY | {"dataset": "mnist", "rounds": 1, "model": "linear"}
    folder, failures, _ = run(tmp_path, "it", compare.cells(["none"], [2.0], 1, keys, {}))
    assert not failures and (folder.path / "ledger.sqlite").is_file() and not registry().exists()
    book = Ledger(folder.path / "ledger.sqlite", "read")
    assert book.data() == ["benchmark mnist"] and book.store() is None
    book.close()


def test_only_claims_that_do_not_hold_are_kept_out_of_the_ranking(made, tmp_path):
    """udp-fl-paper with Gaussian noise is DP-SGD: its claim holds, so it has none; with Laplace noise it does not."""
    for mechanism, kind in (("gaussian", "sound"), ("laplace", "printed")):
        found = made("dp-sgd,udp-fl-paper", (4.0,), 1, own={"udp-fl-paper": {"mechanism": mechanism}}, rounds=2)
        folder, failures, _ = run(tmp_path, mechanism, found)
        plain, paper = lines(read(folder.path, failures))
        assert (plain.kind, paper.kind, paper.claim is None) == ("sound", kind, kind == "sound")
        assert (paper.accounted <= 4.0) == (kind == "sound") and paper.whom == plain.whom
        ranked = {line.method for block in blocks([plain, paper]) for _, line in block.ranked}
        assert ranked == ({"dp-sgd", "udp-fl-paper"} if kind == "sound" else {"dp-sgd"})


def die_at(point, number):
    """The next comparison dies when a point is passed for the number-th time."""
    seen = 0

    def hook(name):
        nonlocal seen
        seen += name == point
        if name == point and seen == number:
            raise Killed

    faults.set_hook(hook)


def test_resumed_after_kills_it_is_the_same_comparison(made, tmp_path):
    found = made("none,dp-sgd", (4.0,), 2)
    whole, failures, _ = run(tmp_path, "whole", found)
    for point, number in (("planning", 2), ("planned", 1), ("merged", 3), ("finishing", 1), ("merged", 2)):
        die_at(point, number)
        with pytest.raises(Killed):
            run(tmp_path, "it", found)
    faults.set_hook(None)
    before = [p.parent.parent.name for p in (tmp_path / "it").glob("cells/*/public/result.json")]
    assert sorted(before) == ["dp-sgd-eps4-seed0", "none-seed0"]
    again, more, news = run(tmp_path, "it", found)
    assert {n.cell for n in news if n.kind == "began"} == set(names(found)) - set(before)  # finished ones are skipped
    assert csv_of(again, more) == csv_of(whole, failures) and not more
    assert all(charges(again.path / "cells" / n) == [0, 1, 2, 3] for n in names(found))


def test_a_cell_that_died_before_its_plan_starts_anew(made, tmp_path):
    found = made("none")
    (tmp_path / "it" / "cells" / "none-seed0" / "private").mkdir(parents=True)
    (tmp_path / "it" / "private").mkdir()
    (tmp_path / "it" / "private" / "comparison.json").write_text(json.dumps(compare.canonical(found)))
    (tmp_path / "it" / "cells" / "none-seed0" / "private" / "ledger.json").write_text("{")
    assert run(tmp_path, "it", found)[1] == {}


def test_an_unfinished_cell_of_an_earlier_version_is_kept_and_told_of(made, tmp_path):
    """It was charged, so its folder is nobody's to remove; and it cannot go on."""
    found = made("none")
    at = tmp_path / "it" / "cells" / "none-seed0"
    at.mkdir(parents=True)
    (tmp_path / "it" / "private").mkdir()
    (tmp_path / "it" / "private" / "comparison.json").write_text(json.dumps(compare.canonical(found)))
    (at / "plan.json").write_text("{}")
    (at / "spec.toml").write_text("rounds = 1\n")
    failures = run(tmp_path, "it", found)[1]
    assert "made by an earlier version" in failures["none-seed0"]
    assert {p.name for p in at.iterdir()} == {"plan.json", "spec.toml"}


def test_a_failing_cell_stops_no_other(made, tmp_path):
    found = made("none,dp-sgd", (0.01, 4.0), 1, **CHARGED)
    folder, failures, _ = run(tmp_path, "it", found)
    assert failures.keys() == {"dp-sgd-eps0.01-seed0"}
    assert failures["dp-sgd-eps0.01-seed0"].startswith("BudgetError: evaluations") and "\n" not in str(failures)
    assert {c.name for c in read(folder.path, failures) if not c.error} == {"none-seed0", "dp-sgd-eps4-seed0"}


@pytest.mark.slow
def test_processes_give_what_one_gives_and_one_that_dies_is_replaced(made, tmp_path):
    found = made("none,dp-sgd", (4.0, 8.0), 1, rounds=20)
    one, failures, _ = run(tmp_path, "one", found)
    killed = []

    def tell(news):
        if news.kind == "began" and not killed:  # its cell is being prepared, or that of the other is
            killed.append(active_children()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    folder = compare.open_folder(str(tmp_path), "it", found)
    lost = compare.execute(folder, found, 2, tell)
    folder.close()
    assert len(lost) == 1 and not active_children()
    assert next(iter(lost.values())) == "its process ended with code -9"
    again, left, _ = run(tmp_path, "it", found)
    assert not left and csv_of(again, left) == csv_of(one, failures)
