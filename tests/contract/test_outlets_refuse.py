"""Outlets refuse whatever would let out more than was declared; each line here is one way to try."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordino.contract.outlets import Outlets
from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.randomized_response import RandomizedResponse
from sordino.privacy.release import Release, Unproven

CLIENTS, DIM = 3, 4
ROWS = 100 * torch.ones(CLIENTS, DIM)


def outlets(*releases, **keys):
    return Outlets(releases, Stream.research(0).at("round", 0).rows(np.arange(CLIENTS)), **keys)


def update(unit="client", bound=1.0, mechanism=None, **keys):
    return Release("update", mechanism or Gaussian(2.0), unit, bound, **keys)


def test_a_row_of_a_client_is_clipped_and_noised():
    found = outlets(update(mechanism=Gaussian(1e-9)))["update"](ROWS)
    assert torch.allclose(found.norm(dim=1), torch.ones(CLIENTS), atol=1e-5)
    assert not torch.equal(outlets(update())["update"](ROWS), found)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_row_is_no_single_record_s(unit):
    """Two records that pull apart: without one of them the clipped row turns over, by twice the bound."""
    with pytest.raises(RunError, match=f"is of {unit}s: a row clipped as a whole does not bound"):
        outlets(update(unit))["update"](ROWS)
    assert outlets(update(unit))["update"](Bounded(torch.zeros(CLIENTS, DIM), 1.0)).shape == (CLIENTS, DIM)
    assert torch.equal(outlets(update(unit, mechanism=Unproven("as printed")))["update"](ROWS), ROWS)


def test_more_than_was_declared_is_refused():
    once = outlets(update())
    once["update"](ROWS)
    with pytest.raises(RunError, match="declared once a round"):
        once["update"](ROWS)
    with pytest.raises(RunError, match=r"declares the bound 1; its outlet was given 1\.5"):
        outlets(update())["update"](Bounded(torch.zeros(CLIENTS, DIM), 1.5))
    for low in (1.9, math.nan):
        with pytest.raises(RunError, match="less noise than was paid for"):
            outlets(update())["update"](ROWS, torch.tensor([[2.0], [low], [2.0]]))
    with pytest.raises(RunError, match="takes one row per client, 3"):
        outlets(update())["update"](ROWS[:2])
    with pytest.raises(RunError, match="there is no outlet 'other': releases declares update"):
        outlets(update())["other"]


@pytest.mark.parametrize("weight", [1.5, -3.0, math.nan])
def test_rows_for_a_server_s_noise_weigh_once_at_most(weight):
    out = outlets(update(where="server"))
    rows = out["update"](ROWS)
    out.check(Message({"update": rows}, torch.tensor([1.0, 0.5, 1.0])))
    with pytest.raises(RunError, match="have weights above 1"):
        out.check(Message({"update": rows}, torch.tensor([1.0, weight, 1.0])))


@pytest.mark.parametrize("value", [1.01, math.nan])
def test_rows_for_a_server_s_noise_keep_the_bound(value):
    out = outlets(update(where="server"))
    rows = out["update"](ROWS).clone()
    rows[1] = value
    with pytest.raises(RunError, match="but the server's noise is for 1"):
        out.check(Message({"update": rows}))


# --- the total of a run


def metered(spent=0.0, **keys):
    return outlets(
        update(mechanism=Gaussian(4.0), total=Gaussian(2.0), times=9),
        spent=torch.full((CLIENTS,), spent, dtype=torch.float64),
        **keys,
    )


def test_uses_are_metered_by_client_until_the_total_is_spent():
    out = metered()
    for use in range(4):
        out["update"](ROWS)
        assert torch.allclose(out.spent, torch.full((CLIENTS,), (use + 1) / 4, dtype=torch.float64))
    with pytest.raises(RunError, match=r"would take a client to 1\.25 times the total"):
        out["update"](ROWS)
    apart = metered()
    apart.only(np.array([2]))["update"](ROWS[:1])
    assert apart.spent.tolist() == [0.0, 0.0, 0.25]


def test_the_coordinate_with_the_least_noise_is_what_is_metered():
    multiplier = torch.full((CLIENTS, DIM), 8.0)
    multiplier[1, 2] = 4.0
    out = metered()
    out["update"](ROWS, multiplier)
    assert out.spent.tolist() == [1 / 16, 1 / 4, 1 / 16]


def test_a_client_of_its_own_multiplier_has_its_own_total():
    out = metered(own=torch.tensor([[2.0], [4.0], [2.0]]), base=2.0)
    out["update"](ROWS)
    assert out.spent.tolist() == [0.25] * 3  # of twice the multiplier, with twice the noise


def test_a_total_that_cannot_be_metered_is_refused():
    release = update(mechanism=Gaussian(4.0), total=RandomizedResponse(1.0))
    with pytest.raises(RunError, match="no noise multiplier to meter its uses by"):
        outlets(release, spent=torch.zeros(CLIENTS, dtype=torch.float64))["update"](ROWS)
