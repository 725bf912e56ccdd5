"""The table of what goes together is the truth: what it allows runs, what it refuses is refused with its words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import sordino
from sordino.cli.methods import methods
from sordino.core import plugin
from sordino.core.errors import SordinoError, SpecError
from sordino.data.clients import ArrayClients, LazyClients
from sordino.runs import build, loop
from sordino.spec import legal, spec
from support.methods import federation_of, play
from support.problems import federation, job, linear, mlp

CPU = torch.device("cpu")
ROWS = legal.table()
CARRIERS = legal.carriers()
CELLS = [(row["algorithm"], row["unit"], method) for row in ROWS for method in CARRIERS]
OTHERS = [
    (method, algorithm)
    for method in plugin.available("methods")
    if method not in CARRIERS
    for algorithm in plugin.load("methods", method).algorithms or ("fedavg", "scaffold")
]
SIZES = (4, 6, 4)
USERS = [np.arange(n) // 2 + 10 * k for k, n in enumerate(SIZES)]


def with_users():
    x, y = (torch.cat(t) for t in zip(*federation(SIZES), strict=True))
    return ArrayClients(x, y, SIZES, np.concatenate(USERS))


def built(method, algorithm, **keys):
    steps = {} if algorithm == "fedsgd" else {"local_steps": 2}
    keys = {"rounds": 2, "device": "cpu", "learning_rate": 0.1, "seed": 0} | steps | keys
    return build.build(spec.from_dict({"method": method, "algorithm": algorithm} | keys), mlp(), with_users())


def test_the_table_is_whole():
    assert len(ROWS) == len(plugin.available("algorithms")) * 3
    yes = sum(row[m].startswith("yes") for row in ROWS for m in CARRIERS)
    no = sum(row[m].startswith("no: ") for row in ROWS for m in CARRIERS)
    refused = sum(3 - len(plugin.load("methods", m).units) for m in CARRIERS)
    assert yes + no == len(CELLS) and no == refused * len(plugin.available("algorithms"))
    assert set(CARRIERS) == {"dp-fedavg", "dp-ftrl", "dp-sgd", "none"}


@pytest.mark.parametrize("pair", OTHERS, ids=" ".join)
def test_the_other_methods_run_with_every_algorithm_they_name(pair):
    method, algorithm = pair
    steps = {} if algorithm == "fedsgd" else {"local_steps": 2}
    made = job(method=method, algorithm=algorithm, rounds=2, **steps)
    state = loop.begin(made)
    after = play(made, [0, 1, 2], state).after
    assert torch.isfinite(after.params).all() and not torch.equal(after.params, state.params)


def test_a_method_that_names_its_algorithms_refuses_the_others():
    with pytest.raises(SpecError, match="dp-scaffold does not go with fedavg: it goes with scaffold"):
        job(method="dp-scaffold", algorithm="fedavg")


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_a_cell_runs_or_is_refused_as_the_table_says(cell):
    algorithm, unit, method = cell
    (text,) = (row[method] for row in ROWS if (row["algorithm"], row["unit"]) == (algorithm, unit))
    if text.startswith("no"):
        with pytest.raises(SpecError) as refused:
            built(method, algorithm, unit=unit)
        assert str(refused.value) == f"{method} does not go with {algorithm} for unit = {unit}: {text[4:]}."
        return
    made = built(method, algorithm, unit=unit)
    state, clients = loop.begin(made), federation_of(made)
    for _ in range(2):
        played = play(made, [0, 1, 2], state, clients)
        after = played.after
        assert (
            len(played.sent) == 3 and torch.isfinite(after.params).all() and not torch.equal(after.params, state.params)
        )
        state = after
    cost = made.plan_cost()
    assert cost.unit == unit
    assert made.promise.epsilon <= 2.0 if made.method.private else made.promise.epsilon == float("inf")


def test_without_a_unit_the_method_s_own_one_is_meant():
    for method in plugin.available("methods"):
        own = plugin.load("methods", method).units[0]
        for algorithm in plugin.available("algorithms"):
            assert legal.verdict(method, algorithm) == legal.verdict(method, algorithm, own)


def test_a_new_rule_reaches_refusal_and_table(monkeypatch):
    monkeypatch.setattr(legal, "RULES", (*legal.RULES, lambda case: "never" if case.algorithm == "fedprox" else None))
    assert all(row["dp-sgd"].startswith("no") for row in legal.table() if row["algorithm"] == "fedprox")
    with pytest.raises(SpecError, match="dp-sgd does not go with fedprox: never"):
        built("dp-sgd", "fedprox")


# --- what cannot be meant: one line, and nothing on disk

PICTURES = [(torch.rand(6, 3, 8, 8), torch.arange(6) % 3) for _ in range(3)]
LAZY = LazyClients(3, 6, lambda i: federation((6,) * 3)[i])

BAD = [
    ({"unit": "recrod"}, "unit must be one of record, client, user, not 'recrod'"),
    ({"unit": "client", "method": "dp-sgd"}, "each record is clipped alone"),
    ({"unit": "record", "method": "dp-fedavg"}, "whole message"),
    ({"unit": "user"}, "give users"),
    ({"method": "dp-sdg"}, "dp-sgd"),
    ({"algorithm": "fedawg"}, "fedavg"),
    ({"dropout": "0.3-0.1"}, "from the lower to the higher"),
    ({"dropout": "x"}, "dropout must be a probability"),
    ({"dropout": "0.1-0.2-0.3"}, "dropout must be a probability"),
    ({"dropout": "1"}, r"\[0, 1\)"),
    ({"dropout": "nan"}, "finite"),
    ({"dropout": "-0.2"}, "dropout must be a probability"),
    ({"late": 1.0}, "late"),
    ({"late": -0.1}, "late"),
    ({"slow": 1.5}, "slow"),
    ({"slow": float("nan")}, "slow"),
    ({"late": 0.2, "client_sampling": "fixed", "client_rate": 0.5}, "no accounting"),
    ({"records_per_user": 2}, "unit = user"),
    ({"clients_per_user": 2}, "unit = user"),
    ({"clients_per_user": 0, "unit": "user"}, "at least 1"),
    ({"evaluate_on": "validation", "validation": 0.0}, "needs validation"),
    ({"evaluate_on": "tuning", "validation": 0.2}, "needs tuning"),
    ({"evaluate_on": "tset"}, "test, validation, tuning"),
    ({"validation": 1.0}, "validation"),
    ({"validation": 1e-9, "evaluate_on": "validation"}, "holds out no record"),
    ({"tuning": 0.3, "method": "dp-fedavg", "evaluate_on": "tuning"}, "use validation"),
    ({"release_noise": 0.0, "standardise": True}, "release_noise"),
    ({"release_noise": float("inf"), "standardise": True}, "release_noise"),
    ({"feature_bound": -1.0, "standardise": True}, "feature_bound"),
    ({"release_noise": 0.01, "standardise": True}, "alone cost epsilon"),
    ({"averaging": "tail:2"}, "strictly between"),
    ({"averaging": "mean"}, "none, tail, ema, polynomial"),
    ({"averaging": "ema:x"}, "not a number"),
    ({"averaging": "none:1"}, "takes no number"),
    ({"views": 4}, "need augment"),
    ({"views": 0, "augment": "flip"}, "views"),
    ({"augment": "rotate"}, "none, flip, flip-crop"),
    ({"augment": "flip"}, "for pictures"),
    ({"algorithm": "fedrep"}, "above head_steps"),
    ({"algorithm": "fedrep", "local_steps": 3, "personal_layers": "tail"}, "no parameter begins with 'tail'"),
    ({"algorithm": "fedrep", "local_steps": 3, "personal_layers": "0,2"}, "nothing would be shared"),
    ({"algorithm": "fedrep", "local_steps": 3, "model": linear()}, "personal_layers"),
    ({"algorithm": "fedrep", "local_epochs": 1.0}, "head_steps"),
    ({"algorithm": "fedsgd", "local_epochs": 2.0}, "one step a round"),
    ({"algorithm": "fedsgd", "local_steps": 2}, "one step a round"),
    ({"algorithm": "scaffold", "optimizer": "adam"}, "plain local SGD"),
    ({"algorithm": "q-fedavg", "optimizer": "momentum"}, "plain local SGD"),
    ({"algorithm": "fednova", "optimizer": "adam"}, "fednova"),
    ({"algorithm": "fednova", "q": 2.0}, "q-fedavg"),
    ({"server_lr": 0.0}, "server_lr"),
    ({"schedule": "saw"}, "schedule"),
    ({"budgets": "1:1", "validation": 0.3, "evaluate_on": "validation"}, "budgets"),
    ({"standardise": True, "clients": LAZY}, "in memory"),
    ({"validation": 0.2, "clients": LAZY}, "in memory"),
    ({"standardise": True, "clients": PICTURES}, "rows of numbers"),
    ({"unit": "user", "users": [np.zeros(4, int)] * 3}, "one number for each record"),
    ({"unit": "user", "users": [np.zeros(4), np.zeros(6), np.zeros(4)]}, "whole number"),
    ({"unit": "user", "users": 3}, "one array"),
    ({"unit": "user", "users": USERS, "clients": LAZY}, "in memory"),
    ({"unit": "user", "users": USERS, "budgets": "1:1"}, "budgets"),
    ({"users": USERS}, "unit = user"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "words"), BAD)
def test_what_cannot_be_meant_is_one_line_and_leaves_no_trace(keys, words, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"rounds": 2, "device": "cpu", "model": mlp(), "clients": federation(SIZES)} | keys
    with pytest.raises(SordinoError, match=words) as refused:
        sordino.train(**given)
    assert "\n" not in str(refused.value) and str(refused.value).endswith(".")
    assert not any(tmp_path.iterdir())


BIG = [np.iinfo(np.int64).max - 40 + u for u in USERS]


@pytest.mark.parametrize(
    "numbers",
    [
        BIG,
        [u - 1000 for u in USERS],
        [u.astype(np.uint8) for u in USERS],
        [u.tolist() for u in USERS],
    ],
    ids=["large", "negative", "bytes", "lists"],
)
def test_users_may_have_any_whole_numbers(numbers, tmp_path: Path):
    keys = {"rounds": 1, "device": "cpu", "out": str(tmp_path), "unit": "user", "epsilon": 8.0, "release_noise": 5.0}
    keys |= {"seed": 0}
    held = {"validation": 0.4, "evaluate_on": "validation"}
    found = [
        sordino.train(mlp(), federation(SIZES), users=u, name=n, **keys, **held)
        for u, n in ((USERS, "a"), (numbers, "b"))
    ]
    assert found[0].accuracy == found[1].accuracy


def test_every_method_is_a_column_or_a_line_below():
    told = json.loads(CliRunner().invoke(methods, ["--table", "--json"]).stdout)
    assert told == {"table": legal.table(), "others": legal.others()}
    below = {row["method"]: row for row in legal.others()}
    assert sorted([*legal.carriers(), *below]) == sorted(plugin.loadable("methods"))
    assert below["dp-scaffold"]["algorithms"] == "scaffold"
    for method, row in below.items():
        for algorithm in plugin.loadable("algorithms"):
            assert legal.verdict(method, algorithm).allowed == (algorithm in row["algorithms"].split(", "))


def test_the_page_has_the_table():
    from pathlib import Path

    from sordino.cli.methods import markdown

    page = (Path(__file__).parents[2] / "docs" / "combinations.md").read_text()
    assert page.endswith(markdown())
