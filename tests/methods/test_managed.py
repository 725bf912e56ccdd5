"""The filter behind managed noise multipliers: no history spends more than the budget, crashes included."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import sordino
from sordino.contract.presence import Stragglers
from sordino.core.types import State
from sordino.methods.udp_fl.harmonised import UdpState
from sordino.methods.udp_fl.managed import UNITS, allow, least, likely, most, noise_for
from sordino.methods.udp_fl.method import UdpFl
from sordino.privacy.samplers import Poisson
from support import killed
from support.filters import exact_price
from support.problems import federation, mlp, plan


def at(round, merged=None):
    return State(torch.zeros(1), round, UdpState(merged=round if merged is None else merged))


def histories(seed, trials):
    """Plans, and in which rounds a client takes part."""
    draw = np.random.default_rng(seed)
    for trial in range(trials):
        rounds, rate = int(draw.integers(1, 120)), float(draw.choice([1.0, 0.9, 0.3, 0.05]))
        cap = int(draw.integers(1, rounds + 1)) if trial % 3 == 0 else None
        known = plan(
            rounds=rounds, noise_multiplier=float(draw.uniform(0.1, 40)), max_participations=cap,
            sampler=Poisson(rate), stragglers=Stragglers(dropout=(0.0, float(draw.choice([0.0, 0.5])))),
        )  # fmt: skip
        # also more often than the plan expects, at the end only, and in every round
        there = draw.uniform(size=rounds) < (rate, 1.0, 0.5)[trial % 3]
        if trial % 5 == 0:
            there[: rounds // 2] = False
        yield known, [t for t in range(rounds) if there[t]][: known.participations]


# --- the filter


def test_no_pattern_of_participation_spends_more_than_the_budget():
    """Exactly: in units, and in fractions of the noise that is used."""
    best = Fraction(0)
    for known, rounds in histories(0, 300):
        kept, units_of, spent, steps = (0, 0, 0), [], Fraction(0), 1 + len(rounds) % 4
        for t in rounds:
            units, kept = allow(kept, at(t), known)
            units_of.append(units)
            spent += exact_price(units, steps, known.z)
            assert units <= most(t, known)  # what the ledger writes
            assert not units or noise_for(units, steps, known.z) >= least(t, known, steps)  # and the release declares
        assert sum(units_of) == kept[0] <= UNITS and spent <= 1 and kept[1] == len(rounds)
        best = max(best, spent)
    assert best > Fraction(999, 1000)


def test_what_the_ledger_writes_is_no_idle_bound():
    close = [
        (most(t, known) - known.participations) / max(1, allow((0, 0, 0), at(t), known)[0])
        for known, rounds in histories(1, 60)
        for t in rounds[:1]
    ]
    assert min(close) == pytest.approx(1, rel=1e-3) and np.median(close) < 1.05


def test_with_everyone_in_every_round_all_rounds_get_the_same():
    known, kept, grants = plan(rounds=40), (0, 0, 0), []
    for t in range(40):
        units, kept = allow(kept, at(t), known)
        grants.append(units)
    assert sum(grants) == UNITS and max(grants) - min(grants) <= 1


def test_who_was_away_has_more_for_each_later_round():
    known = plan(rounds=20)
    assert allow((0, 0, 0), at(15), known)[0] == UNITS // 5  # joined late
    assert allow((UNITS // 20, 1, 0), at(11), known)[0] == (UNITS - UNITS // 20) // 9  # was away for ten rounds
    capped = plan(rounds=20, max_participations=4)
    assert allow((0, 0, 0), at(0), capped)[0] == UNITS // 4
    rare = plan(rounds=100, sampler=Poisson(0.1))
    assert likely(0, rare) == pytest.approx(1 + 9.9 + math.sqrt(99 * 0.09))
    failing = replace(rare, stragglers=Stragglers(dropout=(0.2, 0.6)))
    assert likely(0, failing) < likely(0, rare) and likely(99, failing) == likely(200, rare) == 1


def test_rare_participations_share_nearly_all_of_the_budget_evenly():
    """The mean of 1 / rho, which is what noise is made of: an even split among q rounds would have q rounds."""
    draw, known, found = np.random.default_rng(3), plan(rounds=100, sampler=Poisson(0.1)), []
    for _ in range(200):
        kept, shares = (0, 0, 0), []
        for t in np.flatnonzero(draw.uniform(size=100) < 0.1):
            units, kept = allow(kept, at(int(t)), known)
            shares.append(units / UNITS)
        found += [np.mean([1 / s for s in shares])] * bool(shares)
    assert 10 < np.mean(found) < 15  # against 100 of the constant multiplier, which provides for every round
    assert max(found) < 60


def test_rounds_lost_in_a_crash_count_as_spent():
    """Secure mode: rounds after the last checkpoint were released, and what clients kept of them is gone."""
    draw, worst_naive = np.random.default_rng(1), 0
    for _ in range(300):
        rounds, rate = int(draw.integers(4, 60)), float(draw.choice([1.0, 0.4]))
        known = plan(rounds=rounds, sampler=Poisson(rate))
        first, lost = int(draw.integers(0, rounds // 2)), int(draw.integers(1, rounds // 2))
        there = draw.uniform(size=rounds) < draw.choice([1.0, 0.6])
        spent, kept = 0, (0, 0, 0)
        for t in range(first):
            if there[t]:
                units, kept = allow(kept, at(t), known)
                spent += units
        gone = kept
        for t in range(first, first + lost):
            if there[t]:
                units, gone = allow(gone, at(t), known)
                spent += units
        naive, forgetful = spent, kept
        for t in range(first + lost, rounds):
            if there[t]:
                units, kept = allow(kept, at(t, merged=t - lost), known)
                spent += units
                assert kept[2] == lost
                units, forgetful = allow(forgetful, at(t), known)
                naive += units
        assert spent <= UNITS
        worst_naive = max(worst_naive, naive)
    assert worst_naive > 1.1 * UNITS  # had nobody counted them


@pytest.mark.parametrize(("mode", "every"), [("secure", 1e6), ("secure", 0.0), ("research", 1e6)])
def test_a_killed_run_releases_no_more_than_the_budget(mode, every, tmp_path, monkeypatch):
    def train(**keys):
        return sordino.train(mlp(), federation((12, 5, 9, 7)), test=federation((9,))[0], **keys)

    keys = {"method": "udp-fl", "managed": True, "mechanism": "laplace", "epsilon": 60.0, "rounds": 6, "mode": mode}
    keys |= {"checkpoint_seconds": every, "out": str(tmp_path), "name": "it", "device": "cpu"}
    share, result = killed.spent(
        UdpFl,
        lambda message: message["spent"].tolist(),
        mode,
        monkeypatch,
        lambda: train(**keys),
        lambda: train(resume=tmp_path / "it"),
    )
    assert result.guarantee.epsilon <= 60
    if mode == "research":
        assert share == pytest.approx(1, abs=1e-6)  # and nothing was lost
