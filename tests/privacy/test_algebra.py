"""More noise on every release of an event, and what pure releases promise together."""

from __future__ import annotations

import math

import pytest

from sordino.core.errors import SordinoError
from sordino.privacy import algebra, tightest
from sordino.privacy.events import (
    Approximate,
    Composed,
    FixedSize,
    GaussianEvent,
    NonPrivate,
    Parallel,
    Pure,
    Repeated,
    Sampled,
    Visible,
)
from sordino.privacy.mechanisms.laplace import LaplaceEvent
from sordino.privacy.mechanisms.randomized_response import RandomizedResponseEvent

# --- scaled


@pytest.mark.parametrize(
    "made",
    [
        GaussianEvent,
        LaplaceEvent,
        lambda z: Repeated(GaussianEvent(z), 4),
        lambda z: Composed((GaussianEvent(z), LaplaceEvent(2 * z))),
        lambda z: Parallel((GaussianEvent(z), GaussianEvent(3 * z)), by_place=True),
        lambda z: Sampled(GaussianEvent(z), 0.1),
        lambda z: Sampled(GaussianEvent(z), 0.1, "replace"),
        lambda z: FixedSize(GaussianEvent(z), 3, 12),
        lambda z: Visible(Repeated(Sampled(GaussianEvent(z), 0.5), 3), 0.2),
    ],
)
def test_noise_is_scaled_wherever_it_is_inside(made):
    """Draws, counts and places stay; only the noise changes."""
    assert algebra.scaled(made(2.0), 1.5) == made(3.0)
    assert algebra.scaled(made(2.0), 1.0) == made(2.0)


def test_more_noise_costs_less():
    event = Repeated(Sampled(GaussianEvent(1.0), 0.2), 10)
    costs = [tightest.epsilon(algebra.scaled(event, factor), 1e-5) for factor in (0.5, 1.0, 2.0)]
    assert costs[0] > costs[1] > costs[2] > 0


def test_what_is_not_private_stays_so_and_what_has_no_scale_is_refused():
    assert algebra.scaled(NonPrivate("a test"), 9.0) == NonPrivate("a test")
    assert NonPrivate("a test") in algebra.scaled(Composed((GaussianEvent(1.0), NonPrivate("a test"))), 2.0).events
    for event in (Pure(1.0), RandomizedResponseEvent(1.0), Repeated(Approximate(1.0, 1e-6), 2)):
        with pytest.raises(SordinoError):
            algebra.scaled(event, 2.0)


# --- pure


def amplified(epsilon, rate):
    """Balle, Barthe, Gaboardi (2018), Theorem 8."""
    return math.log(1 + rate * (math.exp(epsilon) - 1))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Pure(0.7), 0.7),
        (LaplaceEvent(2.0), 0.5),
        (RandomizedResponseEvent(1.2), 1.2),
        (Repeated(Pure(0.7), 3), 2.1),
        (Repeated(Pure(0.7), 0), 0.0),
        (Composed(()), 0.0),
        (Composed((Pure(0.2), Repeated(LaplaceEvent(2.0), 4))), 2.2),
        (Parallel((Pure(0.2), Pure(0.9), Pure(0.4))), 0.9),
        (Repeated(Parallel((Pure(0.2), Pure(0.9))), 2), 1.8),
        (Sampled(Pure(0.7), 0.25), amplified(0.7, 0.25)),
        (Repeated(Sampled(Pure(0.7), 0.25), 3), 3 * amplified(0.7, 0.25)),
        (FixedSize(Pure(0.7), 3, 12), amplified(0.7, 0.25)),
        (Visible(Pure(0.7), 0.25), 0.7),
        (Sampled(LaplaceEvent(2.0), 0.25, "replace"), 0.5),
        (Sampled(Pure(0.7), 1.0), 0.7),
    ],
    ids=str,
)
def test_the_pure_epsilon_by_hand(event, expected):
    assert algebra.pure(event) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(2.0),
        Approximate(0.5, 1e-6),
        NonPrivate("a test"),
        Composed((Pure(0.2), GaussianEvent(9.0))),
        Parallel((Pure(0.2), GaussianEvent(9.0))),
        Sampled(GaussianEvent(2.0), 0.1),
        Visible(GaussianEvent(2.0), 0.1),
        FixedSize(GaussianEvent(2.0), 3, 12),
        Repeated(Composed((Pure(0.1), Approximate(0.1, 1e-9))), 2),
    ],
    ids=str,
)
def test_what_is_not_pure_has_no_pure_epsilon(event):
    assert algebra.pure(event) is None


@pytest.mark.parametrize("event", [Repeated(LaplaceEvent(2.0), 3), Repeated(Sampled(Pure(0.7), 0.25), 3)], ids=str)
def test_no_delta_is_left_at_the_pure_epsilon(event):
    assert tightest.delta(event, 1.01 * algebra.pure(event)) <= 1e-12  # the accountant works on a grid
    assert tightest.delta(event, 0.9 * algebra.pure(event)) > 0
