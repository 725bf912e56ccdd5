"""Rounds that cost different amounts: totals, and what a client pays that is in some of them only."""

from __future__ import annotations

import math

import pytest

from sordino.core.errors import UnsupportedEvent
from sordino.privacy import price
from sordino.privacy.accountants import gdp
from sordino.privacy.events import Composed, Cost, GaussianEvent, NonPrivate, Repeated, Sampled
from sordino.privacy.samplers import Poisson
from sordino.privacy.tightest import epsilon

SCHEDULE = [3.0, 2.0, 2.0, 5.0, 4.0]


def costs(events, unit="client", viewer="server"):
    return [Cost(unit, "add/remove", viewer, e) for e in events]


def spent(events, viewer, sampler, participations, unit="client"):
    found = price.total(costs(events, unit, viewer), viewer, sampler, 10, len(events), participations)
    return min(epsilon(e, 1e-5) for e in found)


def test_all_rounds_compose_exactly():
    mu = math.sqrt(sum(z**-2 for z in SCHEDULE))
    assert spent([GaussianEvent(z) for z in SCHEDULE], "server", Poisson(1.0), 5) == pytest.approx(
        gdp.epsilon_of_mu(mu, 1e-5), rel=1e-9
    )


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_who_is_in_some_rounds_pays_for_the_dearest_of_them(most):
    """Whichever they are: no choice of so many rounds costs more, and one costs as much."""
    dearest = sorted(SCHEDULE)[:most]
    mu = math.sqrt(sum(z**-2 for z in dearest))
    found = spent([GaussianEvent(z) for z in SCHEDULE], "server", Poisson(1.0), most)
    assert found == pytest.approx(gdp.epsilon_of_mu(mu, 1e-5), rel=1e-9)
    cheap = math.sqrt(sum(z**-2 for z in sorted(SCHEDULE)[-most:]))
    assert found > gdp.epsilon_of_mu(cheap, 1e-5)


def test_a_schedule_of_equal_rounds_is_repetition():
    one = Sampled(GaussianEvent(1.5), 0.1)
    by_round = price.total(costs([one] * 7), "public", Poisson(0.5), 10, 7, 7)
    repeated = price.total(costs([one])[0], "public", Poisson(0.5), 10, 7, 7)
    assert [epsilon(e, 1e-5) for e in by_round] == [epsilon(e, 1e-5) for e in repeated]


def test_a_hidden_draw_amplifies_every_round_with_its_own_noise():
    events = [GaussianEvent(z) for z in SCHEDULE]
    hidden = epsilon(Composed(tuple(Sampled(e, 0.2) for e in events)), 1e-5)
    assert spent(events, "public", Poisson(0.2), 5) == pytest.approx(hidden, rel=1e-6)
    assert hidden < spent(events, "server", Poisson(0.2), 5)


def test_rounds_of_different_kinds_have_no_dearest():
    mixed = [GaussianEvent(2.0), Repeated(GaussianEvent(2.0), 2), GaussianEvent(3.0)]
    with pytest.raises(UnsupportedEvent, match="different kinds"):
        spent(mixed, "server", Poisson(1.0), 2)
    crossing = [Composed((GaussianEvent(1.0), GaussianEvent(3.0))), Composed((GaussianEvent(3.0), GaussianEvent(1.0)))]
    with pytest.raises(UnsupportedEvent, match="different kinds"):
        spent(crossing, "server", Poisson(1.0), 1)
    assert spent(mixed, "server", Poisson(1.0), 3) > 0  # all of them: no choice to be made


def test_nothing_has_happened_yet_and_nothing_holds():
    assert spent([], "server", Poisson(1.0), 0) == 0
    assert spent([GaussianEvent(1.0), NonPrivate("why"), GaussianEvent(2.0)], "server", Poisson(1.0), 1) == math.inf
