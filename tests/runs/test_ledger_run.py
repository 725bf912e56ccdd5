"""Runs and the ledger they share: refused before any work, charged once, and personal budgets."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch

import sordino
from sordino.core import faults
from sordino.core.errors import BudgetError, RunError, SpecError
from sordino.data.clients import ArrayClients, LazyClients
from sordino.ledger.ledger import Budget, Ledger
from sordino.privacy import tightest
from sordino.privacy.events import Repeated
from sordino.run_folder.folder import RunFolder
from sordino.runs import run
from sordino.runs.fingerprint import fingerprints
from support.killed import Killed, kill_at
from support.methods import price
from support.problems import charges, federation, held_out, job, mlp, registry, same_weights


def train(out, clients=None, **keys):
    keys = {
        "mode": "research",
        "rounds": 3,
        "epsilon": 1.0,
        "learning_rate": 0.5,
        "out": str(out),
        "device": "cpu",
    } | keys
    return sordino.train(mlp(), federation() if clients is None else clients, test=held_out(), **keys)


def set_budget(path, epsilon, delta=1e-3, theory="plans"):
    book = Ledger(path)
    book.set_budget(Budget(epsilon, delta, theory, None))
    book.close()


def entries(path, where="1"):
    db = sqlite3.connect(path)
    try:
        return db.execute(f"SELECT kind, job, data, epsilon, delta FROM entry WHERE {where} ORDER BY id").fetchall()
    finally:
        db.close()


def folders(out):
    return sorted(p.name for p in out.iterdir() if p.is_dir())


# --- one budget over runs


def test_runs_on_the_same_data_share_a_budget_and_are_refused_before_any_work(tmp_path):
    set_budget(registry(), 2.5)
    train(tmp_path, name="one")
    train(tmp_path, name="two", method="dp-sgd", seed=3, rounds=5)
    before = entries(registry())
    with pytest.raises(BudgetError, match=r"asks for epsilon 0\.99.*left: epsilon 0\.5.*would fit: epsilon <= 0\.5"):
        train(tmp_path, name="three")
    assert folders(tmp_path) == ["one", "two"] and entries(registry()) == before
    train(tmp_path, name="three", epsilon=0.5)
    train(tmp_path, federation(seed=1), name="four")  # other data
    plans = [e for e in entries(registry()) if e[0] == "plan"]
    assert len(plans) == 4 and len({e[2] for e in plans}) == 2
    assert [round(e[3], 1) for e in plans] == [1.0, 1.0, 0.5, 1.0] and plans[0][4] == 1e-5


def test_every_run_has_its_ledger_head_and_they_all_verify(tmp_path):
    results = [train(tmp_path, seed=s) for s in (1, 2)]
    book = Ledger(registry(), "read")
    try:
        heads = []
        for result in results:
            kept = json.loads((result.folder / "private" / "ledger.json").read_text())
            assert kept["head"] not in "".join(p.read_text() for p in (result.folder / "public").glob("*.json"))
            assert kept["path"] is None and kept["data"] is None
            heads.append((str(result.folder), kept["entries"], kept["head"]))
        assert [h[1] for h in heads] == [4, 8]  # a plan and three rounds each
        assert book.chain.verify(heads) == [] and book.chain.head() == (8, heads[1][2])
    finally:
        book.close()


def test_a_run_may_name_its_ledger_and_be_moved(tmp_path):
    place = tmp_path / "elsewhere" / "book.sqlite"
    kill_at("merged")
    with pytest.raises(Killed):
        train(tmp_path / "runs", name="it", ledger=str(place))
    faults.set_hook(None)
    assert place.is_file() and not (tmp_path / "runs" / "ledger.sqlite").exists()
    shutil.move(tmp_path, tmp_path.with_name(tmp_path.name + "-moved"))
    there = tmp_path.with_name(tmp_path.name + "-moved")
    result = sordino.train(mlp(), federation(), test=held_out(), resume=there / "runs" / "it")
    assert len(result.history) == 3 and charges(result.folder) == [0, 1, 2]


@pytest.mark.parametrize("mode", ["research", "secure"])
@pytest.mark.parametrize("point", ["planning", "planned", "paid", "merged", "noting", "finishing"])
def test_a_plan_is_charged_once_however_often_the_run_dies(mode, point, tmp_path):
    set_budget(registry(), 1.0)
    kill_at(point)
    with pytest.raises(Killed):
        train(tmp_path, name="it", mode=mode)
    for _ in range(2):
        with contextlib.suppress(Killed):
            sordino.train(mlp(), federation(), test=held_out(), resume=tmp_path / "it")
    faults.set_hook(None)
    planned = [e for e in entries(registry()) if e[0] == "plan"]
    assert len(planned) == (point != "planning")
    result = sordino.train(mlp(), federation(), test=held_out(), resume=tmp_path / "it")
    assert len([e for e in entries(registry()) if e[0] == "plan"]) == 1
    assert result.guarantee.epsilon <= 1.0 and len(charges(tmp_path / "it")) == 3
    with pytest.raises(BudgetError, match=r"left: epsilon \d\.?\d*e-"):
        train(tmp_path, name="next")


def test_an_abandoned_run_stays_charged(tmp_path):
    set_budget(registry(), 1.5)
    kill_at("drawn")
    with pytest.raises(Killed):
        train(tmp_path, name="it")
    faults.set_hook(None)
    shutil.rmtree(tmp_path / "it")
    with pytest.raises(BudgetError, match=r"left: epsilon 0\.5"):
        train(tmp_path, name="next")


def test_a_refusal_at_the_last_moment_leaves_no_folder(tmp_path, monkeypatch):
    """Another run took the rest of the budget between the first look and the entry."""
    set_budget(registry(), 1.5)
    train(tmp_path, name="one")
    with monkeypatch.context() as patch:
        patch.setattr(run, "afford", lambda job, data: None)
        with pytest.raises(BudgetError, match="left: epsilon"):
            train(tmp_path, name="two")
    assert folders(tmp_path) == ["one"]


def test_a_name_that_is_taken_costs_nothing(tmp_path):
    train(tmp_path, name="one")
    with pytest.raises(RunError, match="exists already"):
        train(tmp_path, name="one")
    assert len([e for e in entries(registry()) if e[0] == "plan"]) == 1


def test_a_run_without_privacy_is_counted_as_infinite_and_refused_under_a_budget(tmp_path):
    train(tmp_path, method="none")
    assert entries(registry(), "kind = 'plan'")[0][3] == float("inf")
    other = {"ledger": str(tmp_path / "other.sqlite"), "out": str(tmp_path / "other")}
    set_budget(tmp_path / "other.sqlite", 100.0)
    with pytest.raises(BudgetError, match="epsilon inf"):
        train(method="none", **other)
    made = job(method="dp-sgd", **other)
    object.__setattr__(made.spec, "baseline", True)
    with pytest.raises(BudgetError, match="no baseline without privacy"):
        run.execute(made, own_model=True)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("theory", ["rdp", "gdp"])
def test_runs_of_plain_gaussians_add_up_better_than_their_epsilons(theory, tmp_path):
    """Budget 2: plain sums would admit four runs of epsilon 0.5, and a delta for each of them."""
    set_budget(registry(), 2.0, 1e-5, theory)
    ran = 0
    with pytest.raises(BudgetError, match="Gaussian noise of multiplier >="):
        for ran in range(20):
            train(tmp_path, rounds=1, seed=ran, epsilon=0.5)
    assert {"rdp": 7, "gdp": 11}[theory] <= ran <= 13


@pytest.mark.parametrize("content", [b"x" * 5000, b""])
def test_a_damaged_ledger_stops_a_run_before_its_folder(content, tmp_path):
    registry().parent.mkdir()
    registry().write_bytes(content)
    if content:
        with pytest.raises(RunError, match="cannot open the ledger"):
            train(tmp_path, name="it")
        assert folders(tmp_path) == [] and registry().read_bytes() == content
    else:
        train(tmp_path, name="it")  # an empty file is a new one


# --- the same data


def test_data_are_the_same_however_they_are_dealt():
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    parts = np.array_split(np.random.default_rng(0).permutation(60), 7)
    one, other = ArrayClients(x, y, [20, 20, 20]), ArrayClients.split(x, y, parts)
    assert fingerprints(one)[1] == fingerprints(other)[1]
    assert fingerprints(one)[0] != fingerprints(other)[0]
    for change in (0, 59):
        z = x.clone()
        z[change, 2] += 1e-3
        assert fingerprints(ArrayClients(z, y, [20, 20, 20]))[1] != fingerprints(one)[1]
    swapped = y[torch.randperm(60, generator=torch.Generator().manual_seed(1))]
    assert fingerprints(ArrayClients(x, swapped, [60]))[1] != fingerprints(one)[1]
    assert fingerprints(ArrayClients(x[:50], y[:50], [50]))[1] != fingerprints(one)[1]


def test_clients_made_when_asked_for_are_told_apart_by_the_first_and_their_number():
    def lazy(count, shift=0.0):
        return LazyClients(count, 5, lambda i: (torch.full((5, 2), i + shift), torch.zeros(5, dtype=torch.int64)))

    found = [fingerprints(c)[1] for c in (lazy(10), lazy(10), lazy(11), lazy(10, 0.5))]
    assert found[0] == found[1] and len(set(found)) == 3


# --- what is said


def test_evaluation_on_public_data_is_said_to_be_so(tmp_path):
    result = train(tmp_path, evaluate_every=2)
    assert [r.evaluated_on for r in result.history] == [None, "public test data", "public test data"]
    assert json.loads((result.folder / "public" / "plan.json").read_text())["evaluated_on"] == "public test data"
    assert [k for k, *_ in entries(registry())] == ["plan", "round", "round", "round"]
    blind = sordino.train(mlp(), federation(), rounds=1, out=str(tmp_path), device="cpu")
    assert blind.history[0].evaluated_on is None
    assert json.loads((blind.folder / "public" / "plan.json").read_text())["evaluated_on"] is None


# --- personal budgets


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_a_client_takes_part_only_while_its_own_budget_pays(method, tmp_path):
    keys = {"method": method, "rounds": 12, "epsilon": 2.0, "budgets": "0.8:0.25,1.4:0.25,2:0.25,50:0.25"}
    result = train(tmp_path, **keys)
    stored = json.loads((result.folder / "public" / "plan.json").read_text())
    found = {b["epsilon"]: b for b in stored["budgets"]}
    assert all(b["clients"] == 2 and b["delta"] == 1e-5 for b in found.values())
    made = job(module=mlp(), out=str(tmp_path), **keys)
    event = price(made.method, made.plan)[-1].event
    caps = {e: b["participations"] for e, b in found.items()}
    assert caps[2.0] == caps[50.0] == 12 and 0 < caps[0.8] < caps[1.4] < 12
    for e in (0.8, 1.4):
        assert (
            tightest.epsilon(Repeated(event, caps[e]), 1e-5) <= e < tightest.epsilon(Repeated(event, caps[e] + 1), 1e-5)
        )
    db = sqlite3.connect(registry())
    cohorts = [np.frombuffer(b, "<i8") for (b,) in db.execute("SELECT owners FROM entry WHERE kind = 'round'")]
    db.close()
    taken = np.bincount(np.concatenate(cohorts), minlength=8)
    assert taken.tolist() == made.caps.tolist() and sorted(taken.tolist()) == sorted(2 * list(caps.values()))
    assert result.notes == ("budgets above the run's epsilon = 2 count as equal to it",)


def test_budgets_change_nobodys_noise_and_a_rich_table_changes_nothing(tmp_path):
    file = tmp_path / "rich.csv"
    file.write_text("client,epsilon\n" + "".join(f"{i},9\n" for i in range(8)))
    plain, rich = train(tmp_path, seed=5), train(tmp_path, seed=5, budgets=str(file))
    assert same_weights(plain.model, rich.model)
    assert replace(rich.guarantee, public=plain.guarantee.public) == plain.guarantee
    assert set(rich.guarantee.public) - set(plain.guarantee.public) == {"the clients' own budgets"}
    poor = train(tmp_path, seed=5, budgets="0.6:0.5,1:0.5")
    plans = [json.loads((r.folder / "public" / "plan.json").read_text()) for r in (plain, poor)]
    assert plans[0]["noise_multiplier"] == plans[1]["noise_multiplier"] and plans[0]["budgets"] is None
    assert not same_weights(plain.model, poor.model)


def test_clients_that_cannot_pay_for_one_round_are_named_and_stay_out(tmp_path):
    file = tmp_path / "b.csv"
    file.write_text("client,epsilon\n" + "".join(f"{i},{0.01 if i in (2, 5) else 1}\n" for i in range(8)))
    result = train(tmp_path, budgets=str(file))
    assert result.notes == ("2 clients never take part, as their budgets pay for no round: 2, 5",)
    assert [r.clients for r in result.private.history] == [6, 6, 6]
    with pytest.raises(BudgetError, match="no client's own budget pays"):
        train(tmp_path, budgets="0.001:1")
    with pytest.raises(
        SpecError, match="budgets of clients work with methods whose epsilon is accounted, not with none"
    ):
        train(tmp_path, method="none", budgets="1:1")


def test_budgets_are_dealt_alike_after_a_crash_also_in_secure_mode(tmp_path):
    keys = {"rounds": 4, "budgets": "0.5:0.5,1:0.5", "mode": "secure", "checkpoint_seconds": 0.0}
    kill_at("merged")
    with pytest.raises(Killed):
        train(tmp_path, name="it", **keys)
    faults.set_hook(None)
    result = sordino.train(mlp(), federation(), test=held_out(), resume=tmp_path / "it")
    caps = job(epsilon=1.0, **keys).caps
    db = sqlite3.connect(registry())
    cohorts = [np.frombuffer(b, "<i8") for (b,) in db.execute("SELECT owners FROM entry WHERE kind = 'round'")]
    db.close()
    assert (np.bincount(np.concatenate(cohorts), minlength=8) <= caps).all() and caps.min() < 4
    assert len(result.history) == 3  # one round was lost


def test_a_table_that_changed_is_not_the_same_run(tmp_path):
    file = tmp_path / "b.csv"
    file.write_text("client,epsilon\n" + "".join(f"{i},0.6\n" for i in range(8)))
    kill_at("merged")
    with pytest.raises(Killed):
        train(tmp_path, name="it", budgets=str(file))
    faults.set_hook(None)
    file.write_text("client,epsilon\n" + "".join(f"{i},1\n" for i in range(8)))
    with pytest.raises(RunError, match="must be the same"):
        sordino.train(mlp(), federation(), test=held_out(), resume=tmp_path / "it")


def test_where_the_draw_is_secret_only_those_with_less_than_the_run_count_their_rounds(tmp_path):
    """The run's own epsilon uses that the draw is hidden; whoever has at least that much may come every time."""
    keys = {"method": "dp-fedavg", "client_rate": 0.5, "rounds": 8, "epsilon": 2.0}
    made = job(out=str(tmp_path), budgets="1.9:0.5,2:0.5", **keys)
    poor, rich = (made.caps[made.budgets.of == i] for i in (0, 1))
    event = price(made.method, made.plan)[-1].event
    assert set(rich.tolist()) == {8} and tightest.epsilon(Repeated(event, 8), 1e-5) > 2.0
    assert len(set(poor.tolist())) == 1 and 0 < poor[0] < 8
    assert tightest.epsilon(Repeated(event, int(poor[0])), 1e-5) <= 1.9


def test_no_space_for_the_head_of_a_run_leaves_no_folder_and_no_charge(tmp_path, monkeypatch):
    real = RunFolder.write_json

    def full(self, name, data):
        if name == "job.json":
            raise RunError("cannot write job.json: No space left on device.")
        real(self, name, data)

    monkeypatch.setattr(RunFolder, "write_json", full)
    with pytest.raises(RunError, match="No space left"):
        train(tmp_path, name="it")
    assert not (tmp_path / "it").exists() and not registry().exists()
