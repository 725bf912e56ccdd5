"""Formulas as printed in papers.  They are claims, shown beside what is accounted; nothing here is a promise.

Why each claim does not hold stands with it. No accountant and no mechanism reads this file.
"""

from __future__ import annotations

import math

from sordino.core import check
from sordino.privacy.accountants import gdp
from sordino.privacy.pairs import gaussian_delta


def nbafl_factor(delta: float) -> float:
    """c = sqrt(2 ln(1.25/delta)): Wei et al. (2020), arXiv:1911.00222, Section III.

    The classical calibration, proved for epsilon <= 1 only (Dwork and Roth 2014, Theorem A.1); the paper uses it at 50.
    """
    check.below_one(delta=delta)
    return math.sqrt(2 * math.log(1.25 / delta))


def nbafl_uplink_std(clip: float, records: int, epsilon: float, delta: float, exposures: int = 1) -> float:
    """sigma_U = c L (2C/m) / eps, m the smallest client.

    Does not hold: 2C/m is the sensitivity of a mean over records; weights that were trained and then clipped to C
    move by up to 2C. And L uploads share one delta, where basic composition would add L of them.
    """
    check.positive(clip=clip, epsilon=epsilon)
    check.count(records=records, exposures=exposures)
    return nbafl_factor(delta) * exposures * 2 * clip / (records * epsilon)


def nbafl_downlink_std(
    clip: float, records: int, epsilon: float, delta: float, rounds: int, exposures: int, clients: int
) -> float:
    """sigma_D = 2cC sqrt(T^2 - L^2 N) / (m N eps) where T > L sqrt(N), else 0.

    Does not hold, for the same reasons: sensitivity 2C/(mN) of a mean that is none, one delta for T rounds.
    """
    check.positive(clip=clip, epsilon=epsilon)
    check.count(records=records, rounds=rounds, exposures=exposures, clients=clients)
    factor, missing = nbafl_factor(delta), rounds**2 - exposures**2 * clients
    return 2 * factor * clip * math.sqrt(missing) / (records * clients * epsilon) if missing > 0 else 0.0


def fedsdp_mu(epsilon: float, delta: float, ratio: float) -> float:
    """mu of one round, eps / sqrt(R + 2 ln(1/delta)), granting 2C/|D|: Li et al. (2025), arXiv:2503.12958.

    Does not hold: the weights of a client are clipped to C after training, so one record moves them by up to 2C. And
    the noise scale follows R, a Shapley ratio of private attributes, and so gives R away.
    """
    return epsilon / math.sqrt(_fedsdp_term(epsilon, delta, ratio, 2.0, 0.0))


def fedsdp_std(
    clip: float, records: int, epsilon: float, delta: float, ratio: float, alpha: float = 2.0, floor: float = 0.0
) -> float:
    """sigma = (2C/|D|) sqrt(max(R + alpha ln(1/delta), beta)) / eps.  Does not hold, as `fedsdp_mu`; one round only."""
    check.positive(clip=clip)
    check.count(records=records)
    return 2 * clip / records * math.sqrt(_fedsdp_term(epsilon, delta, ratio, alpha, floor)) / epsilon


def fedsdp_total(epsilon: float, delta: float, ratio: float, rounds: int, target_delta: float) -> float:
    """The epsilon of that many rounds, exact for Gaussians, which the paper leaves uncounted.

    A bound only if its sensitivity 2C/|D| were right and R were public; with the true 2C it is larger by far.
    """
    check.count(rounds=rounds)
    check.below_one(target_delta=target_delta)
    return gdp.epsilon_of_mu(math.sqrt(rounds) * fedsdp_mu(epsilon, delta, ratio), target_delta)


def _fedsdp_term(epsilon: float, delta: float, ratio: float, alpha: float, floor: float) -> float:
    check.positive(epsilon=epsilon, alpha=alpha)
    check.below_one(delta=delta)
    check.non_negative(ratio=ratio, floor=floor)
    return max(ratio + alpha * math.log(1 / delta), floor)


def xue_delta(epsilon: float, rounds: int, sigma: float) -> float:
    """Xue et al., Algorithm 4: the least exp((a - 1)(L a / (2 sigma_0^2) - eps)) over whole orders a >= 2.

    Holds for public ranges Delta_m only (and then `xue_exact_delta` is far smaller). The method takes its ranges
    from the client's own weights: two neighbours can then have noise of different variance, or none, and delta is 1.
    """
    check.positive(epsilon=epsilon, sigma=sigma)
    check.count(rounds=rounds)
    best = epsilon * sigma**2 / rounds + 0.5  # where the exponent is least
    orders = [max(2.0, order) for order in (math.floor(best), math.ceil(best))]
    return min(1.0, *(math.exp(min(0.0, (a - 1) * (rounds * a / (2 * sigma**2) - epsilon))) for a in orders))


def xue_exact_delta(epsilon: float, rounds: int, sigma: float) -> float:
    """What Algorithm 4 bounds, exactly: L Gaussians of multiplier sigma_0 are sqrt(L)/sigma_0-GDP. Public ranges."""
    check.positive(epsilon=epsilon, sigma=sigma)
    check.count(rounds=rounds)
    return gaussian_delta(math.sqrt(rounds) / sigma, epsilon)
