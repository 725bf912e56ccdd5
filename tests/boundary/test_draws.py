"""What a draw hides from whom: the exact cost by counting every draw, beside what is priced and printed."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from peers import direct
from sordino.cli.events import question
from sordino.core.errors import UnsupportedEvent
from sordino.privacy import events, guarantee, price, tightest
from sordino.privacy.accountants import pld
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import Cost, GaussianEvent, Repeated, Sampled
from sordino.privacy.mechanisms.randomized_response import RandomizedResponse, RandomizedResponseEvent
from sordino.privacy.samplers import FixedSizeSampler, Poisson
from support.gaussian import gaussian_delta
from support.problems import federation, job

DELTA = 1e-5


def least_epsilon(delta_at, delta=DELTA):
    return brentq(lambda e: delta_at(e) - delta, 0.0, 60.0, xtol=1e-12)


def known_rounds(size, population, rounds):
    """How likely it is that k rounds had the target in them for certain, to a client that knows when it was drawn.

    With cohorts of all but one client, whoever was not drawn knows that everybody else was: all draws, one by one."""
    assert size == population - 1
    cohorts = [set(c) for c in itertools.combinations(range(population), size)]
    found = Counter(sum(1 not in c for c in draws) for draws in itertools.product(cohorts, repeat=rounds))
    return {k: n / len(cohorts) ** rounds for k, n in found.items()}


def test_a_client_that_was_not_drawn_knows_who_was():
    """Two clients, one of them drawn for each of ten rounds: not I, so you."""
    made = job(clients=federation((12, 12)), method="dp-fedavg", viewer="client", client_sampling="fixed",
               client_rate=0.5, rounds=10, epsilon=2.0)  # fmt: skip
    assert made.plan.sampler == FixedSizeSampler(1) and made.plan.population == 2
    mu = 2 / made.plan.z  # a replaced client moves the sum by twice the clip
    law = known_rounds(1, 2, 10)
    exact = least_epsilon(lambda e: sum(p * gaussian_delta(mu * math.sqrt(k), e) for k, p in law.items()))
    assert exact <= made.promise.epsilon <= 2.0
    public = made.guarantee("public", 10, 10)
    assert public.epsilon < exact  # what was printed to that client once
    assert "when it takes part itself, but not who else does" in made.promise.sentence()


def test_what_was_printed_once_is_below_what_holds():
    """The same draws at the noise for which the public's price is 2: 3.06 holds against the other client."""
    z = noise_multiplier(lambda z: Repeated(events.FixedSize(GaussianEvent(z), 1, 2), 10), 2.0, DELTA)
    law = known_rounds(1, 2, 10)
    exact = least_epsilon(lambda e: sum(p * gaussian_delta(math.sqrt(k) / z, e) for k, p in law.items()))
    cost = Cost("client", "replace", "public", GaussianEvent(z))
    public, client = (
        price.guarantee([cost], v, FixedSizeSampler(1), 2, 10, 10, DELTA, "secure") for v in ("public", "client")
    )
    assert public.epsilon == pytest.approx(2.0, rel=1e-3) and exact == pytest.approx(3.06, abs=0.01)
    assert client.epsilon >= exact


@pytest.mark.parametrize("population", [2, 3, 4])
def test_a_record_inside_a_client_that_is_surely_drawn(population):
    """Draw n - 1 of n clients: a round in which the viewer stays out has every record of the others in it."""
    sampler, rounds = FixedSizeSampler(population - 1), 4
    cost = Cost("record", "add/remove", "server", GaussianEvent(2.0))
    law = known_rounds(population - 1, population, rounds)

    def lost(e):  # rounds with the viewer in them hide the target among the others: at least what is certain counts
        return sum(p * gaussian_delta(math.sqrt(k) / 2.0, e) for k, p in law.items())

    exact = least_epsilon(lost)
    found = price.guarantee([cost], "client", sampler, population, rounds, rounds, DELTA, "secure", pld.ROUGH)
    public = price.guarantee([cost], "public", sampler, population, rounds, rounds, DELTA, "secure", pld.ROUGH)
    assert found.epsilon >= exact
    assert found.epsilon > public.epsilon
    assert found.epsilon == pytest.approx(
        price.guarantee([cost], "server", sampler, population, rounds, rounds, DELTA, "secure").epsilon, rel=1e-3
    )


def test_where_draws_are_independent_another_client_is_the_public():
    cost = Cost("client", "add/remove", "public", GaussianEvent(2.0))
    one, other = (price.total(cost, v, Poisson(0.3), 5, 6, 6) for v in ("client", "public"))
    assert one == other
    assert price.total(cost, "server", Poisson(0.3), 5, 6, 6) != other


def of_reports(rate, rounds, epsilon):
    """delta(epsilon) of all rounds: so many reports came, so many of them told the truth; nothing else is seen."""
    p, q = (RandomizedResponse(1.0).probabilities(v) for v in (1, 0))
    return sum(binom.pmf(n, rounds, rate) * direct.delta(p, q, n, epsilon) for n in range(1, rounds + 1))


@pytest.mark.parametrize(("rounds", "known", "once"), [(1, 0.99986, 0.1586), (20, 7.718, 2.089)])
def test_whether_a_report_came_shows(rounds, known, once):
    """Randomized response of epsilon 1, asked of a tenth of all clients in every round."""
    exact = brentq(lambda e: of_reports(0.1, rounds, e) - DELTA, 0.0, float(rounds), xtol=1e-12)
    assert exact == pytest.approx(known, rel=1e-4)
    cost = Cost("client", "replace", "public", RandomizedResponseEvent(1.0))
    found = price.guarantee([cost], "public", Poisson(0.1), 1000, rounds, rounds, DELTA, "secure")
    assert exact * (1 - 1e-9) <= found.epsilon <= exact * (1 + 1e-3)
    assert found.epsilon > 3 * once  # what was priced once, as if nobody saw whether a report came
    for said in (tightest.epsilon, tightest.explain):
        with pytest.raises(UnsupportedEvent, match="shows whether a report came"):
            said(Sampled(RandomizedResponseEvent(1.0), 0.1), DELTA)


def test_noise_that_every_client_adds_itself_shows_who_is_missing():
    """A cost that says "replace" under a Poisson draw is no cost of an added client, whatever its event."""
    cost = Cost("client", "replace", "public", GaussianEvent(1.0))
    (event,) = price.total(cost, "public", Poisson(0.2), 5, 1, 1)
    for epsilon in (0.1, 0.5, 1.0, 3.0):
        assert tightest.delta(event, epsilon) == pytest.approx(0.2 * gaussian_delta(1.0, epsilon), rel=1e-6)


def test_a_cohort_of_a_fixed_size_promises_nothing_about_added_clients():
    cost = Cost("client", "add/remove", "public", GaussianEvent(1.0))
    with pytest.raises(UnsupportedEvent, match="charge relation replace"):
        price.total(cost, "public", FixedSizeSampler(2), 5, 1, 1)


@pytest.mark.parametrize(("unit", "rate"), [("client", 2 / 3), ("record", 0.5)])
def test_the_command_line_knows_it_too(unit, rate):
    """Two of four clients: two of the three others. Two of four records of somebody's batch stay two of four."""
    flags = {
        "mechanism": "gaussian",
        "noise_multiplier": "4",
        "fixed_size": "2",
        "population": "4",
        "total_delta": "1e-5",
    }
    event = question(flags | {"unit": unit, "viewer": "client"}).event()
    assert isinstance(event, events.FixedSize) and event.size / event.population == pytest.approx(rate)
    assert question(flags | {"unit": unit, "viewer": "public"}).event().population == 4


def test_a_report_is_no_statement_about_clients_that_come_and_go():
    cost = Cost("client", "add/remove", "server", RandomizedResponseEvent(1.0))
    for viewer in ("server", "public"):
        with pytest.raises(UnsupportedEvent, match="say replace"):
            price.guarantee([cost], viewer, Poisson(0.1), 10, 1, 1, DELTA, "secure")


def test_viewers_are_told_apart_in_words():
    assert guarantee.who("client") != guarantee.who("public") != guarantee.who("server")
