"""Random stopping: against the exact divergence of small mechanisms, and against another library."""

import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln, logsumexp

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import algebra, selection, tightest
from sordino.privacy.accountants import rdp
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.events import GaussianEvent, Parallel, Pure, RandomStopping, Repeated, Sampled
from sordino.privacy.mechanisms.generalized_rr import GeneralizedRR

SHAPES = [("poisson", 0.0), ("negative-binomial", 0.0), ("negative-binomial", 1.0), ("negative-binomial", -0.5)]


def masses(mean, law, eta, most=20_000):
    """P(K = k) for k = 0 to most, by the definition and not by the recursion of the sampler."""
    k = np.arange(most + 1)
    logs = gammaln(k + 1.0)
    if law == "poisson":
        return np.exp(k * math.log(mean) - mean - logs)
    gamma = selection.gamma_for(mean, eta)
    with np.errstate(divide="ignore"):
        if eta == 0:
            out = (1 - gamma) ** k / (k * math.log(1 / gamma))
        else:  # the product over l < k of (l + eta) / (l + 1), through the gamma function
            rising = gammaln(k[1:] + eta) - gammaln(1 + eta)
            out = np.append(0.0, (1 - gamma) ** k[1:] * eta * np.exp(rising - logs[1:]) / (gamma**-eta - 1))
    out[0] = 0.0
    return out


def best_of(law_of_run, number):
    """The law of the largest of K independent outcomes, with one more outcome: nothing."""
    reached = np.append(0.0, np.cumsum(law_of_run))
    k = np.arange(len(number))
    at = np.array([float((number * np.minimum(r, 1.0) ** k).sum()) for r in reached])
    return np.append(np.diff(at), number[0])


def divergence(p, q, order):
    some = (p > 0) & (q > 0)
    return float(logsumexp(order * np.log(p[some]) + (1 - order) * np.log(q[some]))) / (order - 1)


@pytest.mark.parametrize(("law", "eta"), SHAPES)
@pytest.mark.parametrize("mean", [1.3, 5.0, 20.0])
def test_the_bound_is_never_below_the_exact_divergence(law, eta, mean):
    """The best outcome of randomized response on four values, whose order is that of the scores."""
    number = masses(mean, law, eta)
    assert number.sum() == pytest.approx(1, abs=1e-6) and (number * np.arange(len(number))).sum() == pytest.approx(
        mean, rel=1e-3
    )
    for epsilon in (0.1, 1.0):
        mechanism = GeneralizedRR(epsilon, 4)
        orders, bound = rdp.ORDERS, rdp.rdp(RandomStopping(Pure(epsilon), mean, law, eta))
        for mine, other in ((0, 3), (3, 0), (1, 2)):
            p, q = (best_of(np.asarray(mechanism.probabilities(v)), number) for v in (mine, other))
            for i in range(0, 120, 7):
                exact = divergence(p, q, orders[i])
                assert exact <= bound[i] + 1e-9, (epsilon, orders[i], exact, bound[i])


def test_a_selection_costs_up_to_three_times_a_run():
    """The geometric law on a run with outcomes bad, middling and good: 3 epsilon is nearly reached."""
    number = masses(200.0, "negative-binomial", 1.0)
    p, q = (np.array([1 - m - g, m, g]) for m, g in ((0.001 * math.e, 0.1), (0.001, 0.1 * math.e)))
    exact = divergence(best_of(p, number), best_of(q, number), 80.0)
    bound = rdp.rdp(RandomStopping(Pure(1.0), 200.0, "negative-binomial", 1.0))
    assert 2.7 < exact <= float(bound[rdp.ORDERS == 80.0][0]) < 3.2


@pytest.mark.parametrize(("law", "eta"), [("poisson", 0.0), *(("negative-binomial", e) for e in (0.0, 1.0, 3.0))])
def test_as_another_library_has_it(law, eta):
    shape = math.inf if law == "poisson" else eta
    z, mean, steps = 8.0, 20.0, 10
    orders = [float(a) for a in rdp.ORDERS]
    accountant = RdpAccountant(orders)
    base = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(z), steps)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(base, mean, shape))
    mine = RandomStopping(Repeated(GaussianEvent(z), steps), mean, law, eta)
    assert tightest.epsilon(mine, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)


@pytest.mark.parametrize(("law", "eta"), SHAPES)
def test_the_number_is_drawn_from_the_stated_law(law, eta):
    mean, rng = 6.0, Stream.research(4)
    drawn = [selection.draw(float(u), mean, law, eta) for u in rng.uniform(4000)]
    counts, expected = np.bincount(drawn, minlength=40)[:40], 4000 * masses(mean, law, eta)[:40]
    some = expected > 5
    assert ((counts - expected)[some] ** 2 / expected[some]).sum() < 2.5 * some.sum()
    wrong = 4000 * masses(1.1 * mean, law, eta)[:40]
    assert ((counts - wrong)[some] ** 2 / wrong[some]).sum() > 1.2 * some.sum()


def test_the_table_of_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| 20 |"))
    laws = (("negative-binomial", 1.0), ("negative-binomial", 0.0), ("poisson", 0.0))
    events = [lambda z, law=law, eta=eta: RandomStopping(GaussianEvent(z), 20.0, law, eta) for law, eta in laws]
    for shown, make in zip(row.split("|")[2:6], [*events, lambda z: Repeated(GaussianEvent(z), 20)], strict=True):
        z = noise_multiplier(make, 2.0, 1e-5)
        assert float(shown) == pytest.approx(tightest.epsilon(GaussianEvent(z), 1e-5), abs=0.006)


def test_the_algebra_of_a_selection():
    inner = Sampled(GaussianEvent(2.0), 0.1)
    event = RandomStopping(inner, 5.0)
    assert algebra.relations(event) == {"add/remove"}
    assert algebra.grouped(event, 2) == RandomStopping(algebra.grouped(inner, 2), 5.0)
    assert algebra.replaced(event).event == Sampled(GaussianEvent(2.0), 0.1, "replace")
    parts = RandomStopping(Parallel((GaussianEvent(2.0), GaussianEvent(1.0)), by_place=True), 5.0)
    assert tightest.epsilon(parts, 1e-5) == tightest.epsilon(RandomStopping(GaussianEvent(1.0), 5.0), 1e-5)
    costs = [tightest.epsilon(RandomStopping(GaussianEvent(2.0), m), 1e-5) for m in (2.0, 10.0, 100.0)]
    assert tightest.epsilon(GaussianEvent(2.0), 1e-5) < costs[0] < costs[1] < costs[2]
    for bad in ({"mean": 1.0}, {"mean": 5.0, "law": "uniform"}, {"mean": 5.0, "law": "negative-binomial", "eta": -1.0}):
        with pytest.raises(SpecError):
            RandomStopping(inner, **bad)
