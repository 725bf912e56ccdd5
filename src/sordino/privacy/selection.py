"""The price of the best of a random number of runs: random stopping.

Papernot and Steinke (2022), "Hyperparameter tuning with Renyi differential privacy", arXiv:2110.03620. A base run is
repeated K times and only the run with the best score is released. K is drawn from a law that does not depend on the
data, and stays secret. If it did not, or if every run were seen, all runs would have to be paid for.

- Truncated negative binomial (Definition 1): eta > -1 and gamma in (0, 1); eta = 1 is the geometric law, eta = 0 the
  logarithmic one. Theorem 2 gives the Renyi divergence of order a: for every other order b >= 1,

      D_a + (1 + eta) (1 - 1/b) D_b + (1 + eta) ln(1/gamma) / b + ln(E[K]) / (a - 1).

- Poisson with mean m. Theorem 6: if one run is (ln(1 + 1/(a-1)), d)-differentially private, then

      D_a + m d + ln(m) / (a - 1).

A Poisson number is zero with probability e^-m, and then nothing is released. That outcome adds e^-m to the moment
e^((a-1) D_a) in the sum of Lemma 7. We add it, so that the bound also holds for small m.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from sordino.core import check
from sordino.core.errors import SpecError

Curve = NDArray[np.float64]
POISSON, BINOMIAL = "poisson", "negative-binomial"
LAWS = (POISSON, BINOMIAL)
MOST_RUNS = 100_000  # a number of runs that is never exceeded in practice; the tail beyond it is rounding error


def check_law(mean: float, law: str, eta: float) -> None:
    """Raise SpecError for a law that is not defined, or whose expected number of runs is below one."""
    check.one_of(LAWS, law=law)
    check.positive(mean=mean)
    if law == BINOMIAL and not (eta > -1 and math.isfinite(eta)):
        raise SpecError(f"eta of the negative binomial law must be above -1, not {eta!r}.")
    if mean <= 1:
        raise SpecError(f"the expected number of runs must be above 1, not {mean:g}.")


def mean_of(gamma: float, eta: float) -> float:
    """Return the mean of the truncated negative binomial law: Definition 1."""
    if eta == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return eta * (1 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def gamma_for(mean: float, eta: float) -> float:
    """Return the gamma with which the truncated negative binomial law has this mean, rounded down."""

    def excess(log_gamma: float) -> float:
        return math.log(mean_of(math.exp(log_gamma), eta)) - math.log(mean)

    low = -1.0
    while excess(low) < 0:
        low *= 2
    return float(np.exp(brentq(excess, low, -1e-12, xtol=1e-14))) * (1 - 1e-9)


def curve(orders: Curve, base: Curve, others: Curve, base_there: Curve, mean: float, law: str, eta: float) -> Curve:
    """Return the Renyi divergences of the released run at `orders`.

    Args:
        orders: the orders, above 1.
        base: the divergences of one run at these orders.
        others: the orders among which the second one, b in Theorem 2, is chosen.
        base_there: the divergences of one run at `others`.
        mean: the expected number of runs.
        law: one of LAWS.
        eta: the shape of the negative binomial law.
    """
    check_law(mean, law, eta)
    if not np.any(base_there) and not np.any(base):
        return np.zeros_like(base)  # a run that tells nothing, however often it is repeated
    if law == POISSON:
        return _poisson(orders, base, others, base_there, mean)
    gamma = gamma_for(mean, eta)
    second = float(np.min((1 - 1 / others) * base_there - math.log(gamma) / others))
    return base + (1 + eta) * second + math.log(mean_of(gamma, eta)) / (orders - 1)


def _poisson(orders: Curve, base: Curve, others: Curve, base_there: Curve, mean: float) -> Curve:
    out = np.empty_like(base)
    for i, a in enumerate(orders):
        near = math.log1p(1 / (a - 1))
        # Canonne, Kamath, Steinke (2020), arXiv:2004.00010, Proposition 12: delta at epsilon = near
        logs = (others - 1) * (base_there + np.log1p(-1 / others) - near) - np.log(others)
        d = math.exp(min(0.0, float(np.min(logs))))
        moment = math.log(mean) + (a - 1) * (float(base[i]) + mean * d)
        out[i] = float(np.logaddexp(moment, -mean)) / (a - 1)
    return out


def draw(uniform: float, mean: float, law: str, eta: float) -> int:
    """Return the number of runs for a uniform random number in [0, 1), by inversion of the distribution function.

    The probabilities are computed in floating point, to about 15 digits."""
    check_law(mean, law, eta)
    gamma = gamma_for(mean, eta) if law == BINOMIAL else 0.0
    number, mass = (0, math.exp(-mean)) if law == POISSON else (1, _first(gamma, eta))
    below = mass
    while uniform >= below and number < MOST_RUNS:
        mass *= mean / (number + 1) if law == POISSON else (1 - gamma) * (number + eta) / (number + 1)
        number, below = number + 1, below + mass
        if mass == 0.0:
            break
    return number


def _first(gamma: float, eta: float) -> float:
    """Return the probability of a single run under the truncated negative binomial law: Definition 1 with k = 1."""
    if eta == 0:
        return (1 - gamma) / math.log(1 / gamma)
    return (1 - gamma) * eta / math.expm1(-eta * math.log(gamma))


def in_words(mean: float, law: str, eta: float) -> str:
    """Return the law as part of a sentence."""
    if law == POISSON:
        return f"a Poisson law with mean {mean:g}"
    name = {0.0: "the logarithmic law", 1.0: "the geometric law"}.get(
        float(eta), f"the truncated negative binomial law with eta = {eta:g}"
    )
    return f"{name} with mean {mean:g}"
