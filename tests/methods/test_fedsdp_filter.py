"""The filter of the sound FedSDP: no client ever spends more than its budget."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import sordino
from sordino.core.errors import RunError
from sordino.federations.simulator import SPENT
from sordino.methods.fedsdp.method import UNITS, FedSdp
from support import killed
from support.fedsdp_jobs import SIZES, at, budgets, made, rounds_of
from support.filters import exact_price
from support.methods import federation_of, play
from support.problems import federation, mlp, plan


def test_no_adaptive_sequence_spends_more_than_the_budget():
    """Exactly, in fractions: the noise that is used, over all participations, however R is chosen."""
    draw, most = np.random.default_rng(0), Fraction(0)
    for trial in range(150):
        rounds, steps = int(draw.integers(1, 120)), int(draw.integers(1, 9))
        whole, slope = float(draw.uniform(0.1, 40)), float(draw.uniform(0, 1.999))
        method, rate = FedSdp(slope=slope), float(draw.choice([1.0, 0.3]))
        cap = int(draw.integers(1, rounds + 1)) if trial % 3 == 0 else None
        known = plan(rounds=rounds, noise_multiplier=whole, max_participations=cap)
        kept, spent = (0, 0, 0), Fraction(0)
        for t in range(rounds):
            if draw.uniform() > rate or kept[1] >= known.participations:
                continue
            # the worst is tried too: chosen by what is left so far
            ratio = (0.0, 1.0, float(draw.uniform()), float(spent > Fraction(1, 2)))[trial % 4]
            units, kept = method.allow(kept, at(t, ratio), known)
            assert units >= 0 and kept[0] <= UNITS
            spent += exact_price(units, steps, whole)
        assert spent <= 1
        most = max(most, spent)
    assert most > Fraction(999, 1000)


def test_an_even_contribution_spends_everything_in_equal_parts():
    known, kept, grants = plan(rounds=40), (0, 0, 0), []
    for t in range(40):
        units, kept = FedSdp(slope=1.7).allow(kept, at(t), known)
        grants.append(units)
    assert sum(grants) == UNITS and max(grants) - min(grants) <= 1


def test_rounds_lost_in_a_crash_count_as_spent():
    """Secure mode: rounds after the last checkpoint were released, and what clients kept of them is gone."""
    draw, worst_naive = np.random.default_rng(1), 0
    for trial in range(300):
        rounds, slope = int(draw.integers(4, 60)), float(draw.uniform(0, 1.99))
        method, known = FedSdp(slope=slope), plan(rounds=rounds)
        first, lost = int(draw.integers(0, rounds // 2)), int(draw.integers(1, rounds // 2))
        spent, kept = 0, (0, 0, 0)
        for t in range(first):
            units, kept = method.allow(kept, at(t, draw.uniform()), known)
            spent += units
        gone = kept
        for t in range(first, first + lost):
            if trial % 2 or draw.uniform() < 0.5:
                units, gone = method.allow(gone, at(t, 0.0 if trial % 3 else draw.uniform()), known)
                spent += units
        total, naive, forgetful = spent, spent, kept
        for t in range(first + lost, rounds):
            ratio = 0.0 if trial % 3 else draw.uniform()
            units, kept = method.allow(kept, at(t, ratio, merged=t - lost), known)
            total += units
            units, forgetful = method.allow(forgetful, at(t, ratio), known)
            naive += units
        assert total <= UNITS
        worst_naive = max(worst_naive, naive)
    assert worst_naive > 1.1 * UNITS  # had nobody counted them


def test_the_state_counts_the_rounds_that_were_merged():
    here = made(rounds=6)
    states, _ = rounds_of(here, 2)
    state, skipped = states[-1], replace(states[-1], round=4)
    assert skipped.method.merged == 2
    grown, careful = (
        here.method.allow((UNITS // 3, 2, 0), s, here.plan)[0] for s in (replace(state, round=2), skipped)
    )
    assert careful < grown


@pytest.mark.parametrize(("mode", "every"), [("secure", 1e6), ("secure", 0.0), ("research", 1e6)])
def test_a_killed_run_releases_no_more_than_the_budget(mode, every, tmp_path, monkeypatch):
    def train(**keys):
        tags = [np.arange(n) % 5 == 0 for n in SIZES]
        return sordino.train(mlp(), federation(SIZES), private_data=tags, test=federation((9,))[0], **keys)

    def share(message):
        return (message["spent"] / UNITS).tolist()

    keys = {"method": "fedsdp", "slope": 1.9, "refresh": 2, "epsilon": 60.0, "rounds": 6, "mode": mode}
    keys |= {"checkpoint_seconds": every, "out": str(tmp_path), "name": "it", "device": "cpu"}
    _, result = killed.spent(
        FedSdp, share, mode, monkeypatch, lambda: train(**keys), lambda: train(resume=tmp_path / "it")
    )
    assert result.guarantee.epsilon <= 60


def test_more_private_contribution_means_more_noise_and_no_slope_none():
    known = plan(rounds=20)
    units = [FedSdp(slope=1.5).allow((0, 0, 0), at(0, r), known)[0] for r in (0.0, 0.3, 0.5, 0.9, 1.0)]
    assert units == sorted(units, reverse=True) and len(set(units)) == 5
    assert units[2] == UNITS // 20 and units[4] == int(UNITS / 20 / 1.75)  # w = 1 / (1 + 1.5 / 2)
    assert len({FedSdp(slope=0.0).allow((0, 0, 0), at(0, r), known)[0] for r in (0.0, 0.5, 1.0)}) == 1


@pytest.mark.parametrize(("slope", "ratio"), [(1.0, 0.0), (1.99, 0.0), (1.99, 0.2), (0.7, 0.1)])
def test_what_is_spent_early_is_not_missing_at_the_end(slope, ratio):
    known, kept, grants = plan(rounds=40), (0, 0, 0), []
    for t in range(40):
        units, kept = FedSdp(slope=slope).allow(kept, at(t, ratio), known)
        grants.append(units / UNITS * 40)  # of an even part
    assert grants[0] > 1.2 and min(grants) > 0.499 and sum(grants) <= 40


def test_a_late_joiner_has_fewer_rounds_to_spend_on():
    known = plan(rounds=20)
    assert FedSdp().allow((0, 0, 0), at(15), known)[0] == UNITS // 5
    capped = plan(rounds=20, max_participations=4)
    assert FedSdp().allow((0, 0, 0), at(0), capped)[0] == UNITS // 4


def test_whoever_has_nothing_left_sends_nothing():
    here = made()
    federation = federation_of(here)
    federation.store.write("budget", [1], torch.tensor([[UNITS, 1, 0]]))
    played = play(here, federation=federation)
    for name in ("update", "groups"):
        assert not played.sent[name][1].any() and played.sent[name][0].all()
    assert played.sent["spent"][1] == 0 and played.sent["left"][1] == 0 and played.sent["std"][1] == 0
    assert budgets(federation)[1, 0] == UNITS and torch.isfinite(played.after.params).all()


@pytest.mark.parametrize("own", [{}, {"budgets": "0.5:0.5,4:0.5", "epsilon": 4.0}])
@pytest.mark.parametrize("groups", [1, 3])
def test_the_outlets_meter_what_the_method_counts(groups, own):
    """Groups that are released apart count once: a record lies in one of them. Each client has a budget of its own."""
    here = made(groups, rounds=5, refresh=2, local_steps=2, **own)
    federation = federation_of(here)
    rounds_of(here, 3, federation)
    metered = federation.store.read(SPENT, range(4), torch.zeros(4, dtype=torch.float64))
    counted = budgets(federation)[:, 0].double() / UNITS
    assert torch.allclose(metered, counted, rtol=2e-6) and bool((metered <= counted).all()) and float(counted.min()) > 0
    rounds_of(here, 5, federation_of(here))  # a whole run fits


def test_what_the_outlets_have_metered_cannot_be_spent_again():
    here = made(rounds=5)
    federation = federation_of(here)
    play(here, federation=federation)
    federation.store.write("budget", range(4), torch.zeros(4, 3, dtype=torch.int64))  # clients that forget
    federation.store.write(SPENT, [2], torch.tensor([0.9]).double())
    with pytest.raises(RunError, match=r"would take a client to 1\.1 times the total"):
        play(here, federation=federation)
