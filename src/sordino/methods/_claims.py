"""Formulas as printed in papers: claims that are shown next to the accounted guarantee and are not promises.

Each function says why its claim does not hold. No accountant and no mechanism uses this module.
"""

from __future__ import annotations

import math

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.privacy.pairs import gaussian_delta


def nbafl_factor(delta: float) -> float:
    """Return c = sqrt(2 ln(1.25/delta)): Wei et al. (2020), arXiv:1911.00222, Section III.

    This is the classical calibration, proved for epsilon <= 1 only (Dwork and Roth 2014, Theorem A.1); the paper uses
    it at 50.
    """
    check.below_one(delta=delta)
    return math.sqrt(2 * math.log(1.25 / delta))


def nbafl_uplink_std(clip: float, records: int, epsilon: float, delta: float, exposures: int = 1) -> float:
    """Return sigma_U = c L (2C/m) / eps, where m is the number of records of the smallest client.

    The claim does not hold: 2C/m is the sensitivity of a mean over records, whereas weights that were trained and then
    clipped to C change by up to 2C. In addition, L uploads share one delta, where basic composition would add L of
    them.
    """
    check.positive(clip=clip, epsilon=epsilon)
    check.count(records=records, exposures=exposures)
    return nbafl_factor(delta) * exposures * 2 * clip / (records * epsilon)


def nbafl_downlink_std(
    clip: float, records: int, epsilon: float, delta: float, rounds: int, exposures: int, clients: int
) -> float:
    """Return sigma_D = 2cC sqrt(T^2 - L^2 N) / (m N eps) where T > L sqrt(N), else 0.

    The claim does not hold, for the same reasons: it uses the sensitivity 2C/(mN) of a mean for something that is not a
    mean, and one delta for T rounds.
    """
    check.positive(clip=clip, epsilon=epsilon)
    check.count(records=records, rounds=rounds, exposures=exposures, clients=clients)
    factor, missing = nbafl_factor(delta), rounds**2 - exposures**2 * clients
    return 2 * factor * clip * math.sqrt(missing) / (records * clients * epsilon) if missing > 0 else 0.0


def nbafl_scheduled_std(
    clip: float, records: int, epsilon: float, delta: float, rounds: int, exposures: int, clients: int, drawn: float
) -> float:
    """Return sigma_D where K of N clients are drawn: 2cC sqrt(T^2/b^2 - L^2 K) / (m K eps) where T > eps/gamma, else 0.

    b = -(T/eps) ln(1 - N/K + (N/K) e^(-eps/T)), gamma = -ln(1 - K/N + (K/N) e^(-eps/(L sqrt(K)))). Uncertain: taken
    from notes on Wei et al., not from the paper itself. In its favour, it approaches `nbafl_downlink_std` as K
    approaches N, and T > eps/gamma exactly where the argument of the root is positive. The claim does not hold, for the
    same reasons.
    """
    check.positive(clip=clip, epsilon=epsilon, drawn=drawn)
    check.count(records=records, rounds=rounds, exposures=exposures, clients=clients)
    if drawn > clients:
        raise SpecError(f"cannot draw {drawn:g} clients: there are {clients}.")
    if drawn == clients:
        return nbafl_downlink_std(clip, records, epsilon, delta, rounds, exposures, clients)
    share = drawn / clients
    gamma = -math.log1p(share * math.expm1(-epsilon / (exposures * math.sqrt(drawn))))
    if rounds * gamma <= epsilon:
        return 0.0
    b = -rounds / epsilon * math.log1p(math.expm1(-epsilon / rounds) / share)
    missing = (rounds / b) ** 2 - exposures**2 * drawn
    return 2 * nbafl_factor(delta) * clip * math.sqrt(max(0.0, missing)) / (records * drawn * epsilon)


# baselines of Xue et al. (docs/results/002)

GEODP_READINGS = ("moments", "linear")


def geodp_first_std(
    clip: float,
    records: int,
    epsilon: float,
    delta: float,
    rounds: int,
    exposures: int,
    ratio: float,
    reading: str = "moments",
) -> float:
    """Return sigma_1 of sigma_t^2 = sigma_1^2 r^(t-1), granting 2C/m, by Yuan et al. (2023), arXiv:2303.04274.

    This is our reading of the paper. With reading "moments", sum_t (2C/m)^2 / sigma_t^2 = eps^2 / (2 ln(1/delta)); with
    "linear", sum_t c (2C/m) / sigma_t = eps, as in NbAFL. The sums run over the most expensive rounds, as many as a
    client takes part in. The claim does not hold, for the reasons in `nbafl_uplink_std`. The moments bound omits a term
    and gives too little noise for a large epsilon even where the sensitivity is correct.
    """
    check.positive(clip=clip, epsilon=epsilon, ratio=ratio)
    check.count(records=records, rounds=rounds, exposures=exposures)
    check.below_one(delta=delta)
    check.one_of(GEODP_READINGS, reading=reading)
    taken = range(rounds - exposures, rounds) if ratio < 1 else range(exposures)
    if reading == "linear":
        return nbafl_uplink_std(clip, records, epsilon, delta) * math.fsum(ratio ** (-t / 2) for t in taken)
    each = 2 * clip / records
    return each * math.sqrt(2 * math.log(1 / delta) * math.fsum(ratio**-t for t in taken)) / epsilon


def fedsdp_mu(epsilon: float, delta: float, ratio: float) -> float:
    """Return mu of one round, eps / sqrt(R + 2 ln(1/delta)), granting 2C/|D|: Li et al. (2025), arXiv:2503.12958.

    The claim does not hold: the weights of a client are clipped to C after training, so one record changes them by up
    to 2C. In addition, the noise scale depends on R, a Shapley ratio of private attributes, and so reveals R.
    """
    return epsilon / math.sqrt(_fedsdp_term(epsilon, delta, ratio, 2.0, 0.0))


def fedsdp_std(
    clip: float, records: int, epsilon: float, delta: float, ratio: float, alpha: float = 2.0, floor: float = 0.0
) -> float:
    """Return sigma = (2C/|D|) sqrt(max(R + alpha ln(1/delta), beta)) / eps, for one round only.

    The claim does not hold, for the reasons in `fedsdp_mu`.
    """
    check.positive(clip=clip)
    check.count(records=records)
    return 2 * clip / records * math.sqrt(_fedsdp_term(epsilon, delta, ratio, alpha, floor)) / epsilon


def _fedsdp_term(epsilon: float, delta: float, ratio: float, alpha: float, floor: float) -> float:
    check.positive(epsilon=epsilon, alpha=alpha)
    check.below_one(delta=delta)
    check.non_negative(ratio=ratio, floor=floor)
    return max(ratio + alpha * math.log(1 / delta), floor)


def xue_delta(epsilon: float, rounds: int, sigma: float) -> float:
    """Return delta of Xue et al., Algorithm 4.

    It is the smallest exp((a - 1)(L a / (2 sigma_0^2) - eps)) over integer orders a >= 2. The claim holds only for
    public ranges Delta_m (and then `xue_exact_delta` is far smaller). The method takes its ranges from the client's own
    weights: noise can then have different variances for two neighbours, or be absent, and delta is 1.
    """
    check.positive(epsilon=epsilon, sigma=sigma)
    check.count(rounds=rounds)
    best = epsilon * sigma**2 / rounds + 0.5  # minimises the exponent
    orders = [max(2.0, order) for order in (math.floor(best), math.ceil(best))]
    return min(1.0, *(math.exp(min(0.0, (a - 1) * (rounds * a / (2 * sigma**2) - epsilon))) for a in orders))


def xue_exact_delta(epsilon: float, rounds: int, sigma: float) -> float:
    """Return the exact delta that Algorithm 4 bounds, for public ranges.

    L Gaussians of multiplier sigma_0 are sqrt(L)/sigma_0-GDP.
    """
    check.positive(epsilon=epsilon, sigma=sigma)
    check.count(rounds=rounds)
    return gaussian_delta(math.sqrt(rounds) / sigma, epsilon)


def xue_sigma(epsilon: float, delta: float, rounds: int) -> float:
    """Return the smallest sigma_0 that Eq. (13) of Xue et al. allows for `rounds` participations.

    The claim does not hold, for the reasons in `xue_delta`.
    """
    check.below_one(delta=delta)
    low, high = 0.0, 1.0
    while xue_delta(epsilon, rounds, high) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if xue_delta(epsilon, rounds, middle) <= delta else (middle, high)
    return high


def udp_mass(lam: float) -> float:
    """Return the total mass of Feng et al.'s staircase density with y = (1 - e^-1) / (2 Delta (v + e^-lambda (1 - v))).

    The claim does not hold: a density has mass 1, so 1 - e^-1 should be 1 - e^-lambda; the two agree at lambda = 1
    only.
    """
    check.positive(lam=lam)
    return -math.expm1(-1.0) / -math.expm1(-lam)


def udp_staircase_rdp(order: float, lam: float, v: float) -> float:
    """Return the Renyi divergence that Feng et al. (2025), Theorem 1, claim for a scalar.

    The paper is "Harmonizing Differential Privacy Mechanisms for FL". The claim does not hold: ln(.) / (alpha - 1) is
    missing; 1 - e^-1 stands for 1 - e^-lambda, 1 - v for min(v, 1 - v), and e^{-sgn(1/2 - v) lambda} for 1 where v >
    1/2. The correct curve is in mechanisms/staircase.py. The theorem says nothing about vectors, although the method
    adds such noise to each of d coordinates.
    """
    check.positive(lam=lam)
    _staircase_shape(order, v)
    both = math.exp((order - 1) * lam) + math.exp(-order * lam)
    sign = (v < 0.5) - (v > 0.5)
    height = -math.expm1(-1.0) / (2 * (v + math.exp(-lam) * (1 - v)))
    return both / 2 + height * (both * (1 - v) + abs(2 * v - 1) * math.exp(-sign * lam))


def udp_staircase_v(order: float, level: float) -> float:
    """Return the v for which Feng et al., Theorem 2, claim a staircase of Renyi divergence `level`, for any lambda.

    The claim does not hold: lambda is missing, and the logarithm does not exist for a level of at most 1.
    """
    if not level > 1:
        raise SpecError(f"Theorem 2 takes the logarithm of level - 1; level must be above 1, not {level!r}.")
    _staircase_shape(order, 0.0)
    return math.log(level - 1) / (order - 1)


def udp_l1_error(length: int, rounds: int, lam: float, v: float, step: float) -> float:
    """Return the expected L1 distance caused by the noise of all rounds, by Feng et al., Theorem 3.

    The claim does not hold: it adds Delta^2 and Delta, the normalising constant is missing, and independent noise grows
    with the square root of the number of rounds; m T E|X| is only an upper bound.
    """
    check.positive(lam=lam, step=step)
    check.count(length=length, rounds=rounds)
    _staircase_shape(2.0, v)
    b, square = math.exp(-lam), step * step
    return length * rounds / (1 - b) * (v * v * square + b * square - b * v * v * square + step * b)


def _staircase_shape(order: float, v: float) -> None:
    if not order > 1:
        raise SpecError(f"a Renyi order lies above 1, not at {order!r}.")
    check.non_negative(v=v)
    if v > 1:
        raise SpecError(f"v must lie in [0, 1], not {v!r}.")
