"""Rounds that cost different amounts, and runs that end by themselves: through the ledger, kills and resumes."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import nullcontext
from itertools import pairwise

import pytest

import sordino
from sordino.methods.dp_sgd import DpSgd
from sordino.privacy.accountants import gdp
from sordino.run_folder.folder import RunFolder
from support.killed import Killed, killing
from support.problems import charges, federation, held_out, job, linear, registry

CLIENTS, TEST = federation(), held_out()


def train(tmp_path, kill=None, **keys):
    """Kill: the name of a point and how often it is passed before."""
    keys = {"mode": "research", "checkpoint_seconds": 0.0} | keys
    with nullcontext() if kill is None else killing(*kill):
        return sordino.train(linear(), CLIENTS, test=TEST, out=str(tmp_path), name="it", **keys)


KEYS = {"method": "geodp", "noise_ratio": 0.5, "rounds": 6, "epsilon": 2.0, "learning_rate": 0.1}


def test_every_round_is_charged_with_its_own_noise(tmp_path):
    result = train(tmp_path, **KEYS)
    with sqlite3.connect(registry()) as book:
        found = [json.loads(e) for (e,) in book.execute("SELECT event FROM entry WHERE kind = 'round' ORDER BY id")]
    book.close()
    levels = [e["noise_multiplier"] for e in found]
    assert len(levels) == 6 and all(b == pytest.approx(a * math.sqrt(0.5)) for a, b in pairwise(levels))
    mu = math.sqrt(sum(z**-2 for z in levels))
    assert result.guarantee.epsilon == pytest.approx(gdp.epsilon_of_mu(mu, 1e-5), rel=1e-6) and mu > 0
    assert 1.99 < result.guarantee.epsilon <= 2.0
    spent = [r.epsilon["server"] for r in result.history]
    assert all(a < b for a, b in pairwise(spent))


@pytest.mark.parametrize("mode", ["research", "secure"])
@pytest.mark.parametrize("point", ["paid", "trained", "merged"])
def test_a_round_that_may_have_been_seen_is_not_paid_for_twice(tmp_path, mode, point):
    """Secure: its noise is lost and costs are uneven, so it is skipped. Research: it is the same release, repeated."""
    with pytest.raises(Killed):
        train(tmp_path, kill=(point, 3), mode=mode, **KEYS)
    result = sordino.train(linear(), CLIENTS, test=TEST, resume=tmp_path / "it")
    assert charges(tmp_path / "it") == [0, 1, 2, 3, 4, 5]
    assert result.guarantee.epsilon <= 2.0
    assert [r.round for r in result.history] == ([1, 2, 3, 5, 6] if mode == "secure" else [1, 2, 3, 4, 5, 6])


def test_a_run_that_ends_by_itself_says_what_it_cost_and_is_evaluated(tmp_path):
    keys = {"method": "adaptive-noise-paper", "sigma0": 26.0, "epsilon": 0.5, "rounds": 20, "evaluate_every": 50}
    result = train(tmp_path, **keys)
    assert len(result.history) == 7 and result.accuracy is not None
    assert [r.accuracy is None for r in result.history] == [True] * 6 + [False]
    assert RunFolder(tmp_path / "it").read_json("result.json", "public")["rounds"] == 7
    again = sordino.train(linear(), CLIENTS, test=TEST, resume=tmp_path / "it")
    assert len(again.history) == 7


def test_what_a_round_costs_is_asked_once_a_round(monkeypatch):
    """Not once a round of every round before it: an epsilon after each of many rounds would cost more than training."""
    asked = []
    plain = DpSgd.releases
    monkeypatch.setattr(DpSgd, "releases", lambda self, *args: (asked.append(args), plain(self, *args))[1])
    made = job(method="dp-sgd", rounds=60)
    asked.clear()
    found = [made.guarantee("server", n, n, rough=True).epsilon for n in range(1, 61)]
    assert len(asked) <= 3 * 60 and found == sorted(found)
    assert made.guarantee("server", 70, 70).epsilon > made.promise.epsilon  # more than was planned is counted too
