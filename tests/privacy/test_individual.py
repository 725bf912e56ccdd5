"""Private accounts: everyone pays for what it moves, and leaves in time."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from sordino.core.errors import SpecError
from sordino.privacy.accountants.gdp import mu_for
from sordino.privacy.individual import Individual


def naive(norms, stds, rho):
    """One record after the other: [rounds, records] norms -> masks."""
    masks = np.zeros(norms.shape, dtype=bool)
    for i in range(norms.shape[1]):
        spent = 0.0
        for t, std in enumerate(stds):
            spent += norms[t, i] ** 2 / (2 * std**2)
            masks[t, i] = spent <= rho
    return masks


def test_a_record_is_dropped_before_its_own_sum_exceeds_the_budget():
    draw = np.random.default_rng(3)
    norms, stds = draw.uniform(0, 1, (40, 500)), draw.uniform(3, 8, 40)
    accounts = Individual(500, 0.2)
    masks = np.array([accounts.admit(n, s) for n, s in zip(norms, stds, strict=True)])
    assert (masks == naive(norms, stds, 0.2)).all()
    paid = (np.where(masks, norms, 0) ** 2 / (2 * stds[:, None] ** 2)).sum(axis=0)
    assert paid.max() <= 0.2
    dropped = ~masks[-1]
    assert 0 < dropped.sum() < 500  # some stay, some go, and who goes does not come back
    assert (np.diff(masks.astype(int), axis=0) <= 0).all()


def test_small_contributions_stay_longer():
    accounts = Individual(3, 0.5)
    stays = np.zeros(3, dtype=int)
    for _ in range(100):
        stays += accounts.admit(np.array([1.0, 0.5, 0.0]), 4.0)
    assert stays.tolist() == [15, 63, 100]  # 0.5 / (1 / 32) = 16 less the rounding up; four times as many; for free


def test_the_budget_is_the_exact_gaussian_one():
    accounts = Individual.of(2, 1.0, 1e-5)
    assert accounts.rho == pytest.approx(0.0359257023274, rel=1e-10)
    mu = mu_for(1.0, 1e-5)
    assert accounts.admit(np.array([mu * (1 - 1e-9), mu * (1 + 1e-9)]), 1.0).tolist() == [True, False]


def test_torch_and_numpy_agree_and_batches_name_their_records():
    draw = np.random.default_rng(5)
    one, other = Individual(50, 0.1), Individual(50, 0.1)
    for _ in range(30):
        ids = draw.choice(50, 20, replace=False)
        norms = draw.uniform(0, 1, 20).astype(np.float32)
        mask = other.admit(torch.from_numpy(norms), 4.0, torch.from_numpy(ids))
        assert mask.dtype == torch.bool and (mask.numpy() == one.admit(norms, 4.0, ids)).all()
    assert 0 < int(other.admit(torch.zeros(50), 1.0).sum()) < 50


def test_a_float32_norm_is_taken_as_rounded_down():
    norm = np.float32(1.0)
    accounts = Individual(1, 0.5)
    assert accounts.admit(np.array([norm]), 1.0).tolist() == [False]  # it may have been 1 + 2^-24
    assert Individual(1, 0.5 * (1 + 1e-6)).admit(np.array([norm]), 1.0).tolist() == [True]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_a_norm_that_is_no_number_is_left_out_for_good(bad):
    accounts = Individual(2, 1e6)
    assert accounts.admit(np.array([bad, 1.0]), 1.0).tolist() == [False, True]
    assert accounts.admit(np.array([0.0, 1.0]), 1.0).tolist() == [False, True]


def test_the_accounts_stay_inside():
    accounts = Individual(4, 1.0)
    accounts.admit(np.array([0.1234, 0.5, 0.2, 0.9]), 1.0)
    assert repr(accounts) == str(accounts) == "Individual(records=4, rho=1)"
    public = [n for n in dir(accounts) if not n.startswith("_")]
    assert public == ["admit", "of", "rho"]
    assert not hasattr(accounts, "__dict__")
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="private"):
            leak(accounts)


@pytest.mark.parametrize(
    ("norms", "ids", "match"),
    [
        (np.zeros(3), None, "one norm per record"),
        (np.zeros((4, 1)), None, "one norm per record"),
        (np.zeros(2), [0, 4], "from 0 to 3"),
        (np.zeros(2), [-1, 2], "from 0 to 3"),
        (np.zeros(2), [0.0, 1.0], "whole numbers"),
        (np.zeros(2), [1, 1], "named twice"),
    ],
)
def test_what_makes_no_sense_is_refused(norms, ids, match):
    with pytest.raises(SpecError, match=match):
        Individual(4, 1.0).admit(norms, 1.0, ids)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(SpecError, match="std"):
        Individual(4, 1.0).admit(np.zeros(4), bad)
    with pytest.raises(SpecError, match="rho"):
        Individual(4, bad)
    with pytest.raises(SpecError, match="epsilon"):
        Individual.of(4, bad, 1e-5)
