"""Seconds for prices and calibrations, ours and the peers', in one run.

    python benchmarks/accountants.py [--repeat 5] [--only calibrate]

One JSON line for each: seconds (the best of `repeat`), epsilon or noise found, and `times_ours`, where a peer can do
the same work. dp-accounting (PLD, RDP), prv-accountant and opacus (PRV) come with the `dev` extra.
A cache would make every second try free, so all caches of the accountants are emptied before each.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dp_accounting as dp
from common import answer
from scipy.optimize import brentq

from sordino.privacy import calibrate, tightest
from sordino.privacy.accountants import pld, rdp
from sordino.privacy.events import Composed, Event, FixedSize, GaussianEvent, Repeated, Sampled
from sordino.privacy.mechanisms.laplace import LaplaceEvent

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "peers"))
import others

LONG = 10.0  # seconds after which nothing is tried again
CACHES = (tightest.epsilon, pld.pair_of, rdp._curve)


def best(repeat: int, work: Callable[[], float]) -> tuple[float, float]:
    """Seconds of the quickest try, and what came out."""
    seconds, found = [], 0.0
    for _ in range(repeat):
        for cached in CACHES:
            cached.cache_clear()
        start = time.perf_counter()
        found = float(work())
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > LONG:
            break
    return min(seconds), found


def steps(z: float, rate: float, count: int) -> Event:
    return Repeated(Sampled(GaussianEvent(z), rate), count)


def theirs(z: float, rate: float, count: int) -> dp.DpEvent:
    return others.steps(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), count)


def without_replacement(z: float) -> dp.DpEvent:
    return others.steps(dp.SampledWithoutReplacementDpEvent(10_000, 100, dp.GaussianDpEvent(z)), 1000)


def their_noise(cost: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Calibration by a bracket and Brent's method, as dp-accounting's own does it, to 1e-4."""
    return float(brentq(lambda z: cost(z) - target, low, high, rtol=1e-4))


def schedule(z: float) -> Event:
    return Composed(tuple(Sampled(GaussianEvent(z * (1 - 0.001 * i)), 0.02) for i in range(300)))


# what: (ours, {peer: work}, goal in seconds)
PRICES = {
    "price, 10,000 steps": (
        lambda: pld.epsilon(steps(1.0, 0.01, 10_000), 1e-5),
        {
            "dp-accounting-pld": lambda: others.dp_pld(theirs(1.0, 0.01, 10_000), 1e-5, 1e-4),
            "dp-accounting-rdp": lambda: others.dp_rdp(theirs(1.0, 0.01, 10_000), 1e-5),
            "prv-accountant": lambda: others.prv([(("sampled", 1.0, 0.01), 10_000)], 1e-5, 0.01)[1],
            "opacus-prv": lambda: others.opacus("prv", [(1.0, 0.01, 10_000)], 1e-5, eps_error=0.01),
        },
        0.1,
    ),
    "price, 10,000,000 steps": (
        lambda: pld.epsilon(steps(2.0, 1e-4, 10**7), 1e-8),
        {
            "dp-accounting-pld": lambda: others.dp_pld(theirs(2.0, 1e-4, 10**7), 1e-8, 2e-5),
            "dp-accounting-rdp": lambda: others.dp_rdp(theirs(2.0, 1e-4, 10**7), 1e-8),
        },
        5.0,
    ),
}
CALIBRATIONS = {
    "calibrate, sampled": (
        lambda: calibrate.noise_multiplier(lambda z: steps(z, 0.01, 1000), 2.0, 1e-5),
        {
            "dp-accounting-pld": lambda: their_noise(
                lambda z: others.dp_pld(theirs(z, 0.01, 1000), 1e-5, 1e-4), 2.0, 0.5, 4.0
            ),
            "dp-accounting-rdp": lambda: their_noise(
                lambda z: others.dp_rdp(theirs(z, 0.01, 1000), 1e-5), 2.0, 0.5, 4.0
            ),
            "opacus-prv": lambda: their_noise(
                lambda z: others.opacus("prv", [(z, 0.01, 1000)], 1e-5, eps_error=0.01), 2.0, 0.5, 4.0
            ),
        },
        1.0,
    ),
    "calibrate, replaced": (
        lambda: calibrate.noise_multiplier(
            lambda z: Repeated(Sampled(GaussianEvent(z), 0.01, "replace"), 1000), 2.0, 1e-5
        ),
        {
            "dp-accounting-pld": lambda: their_noise(
                lambda z: others.dp_pld(theirs(z, 0.01, 1000), 1e-5, 1e-4, others.REPLACE), 2.0, 0.5, 4.0
            )
        },
        1.0,
    ),
    "calibrate, fixed size": (
        lambda: calibrate.noise_multiplier(
            lambda z: Repeated(FixedSize(GaussianEvent(z), 100, 10_000), 1000), 2.0, 1e-5
        ),
        {
            "dp-accounting-rdp": lambda: their_noise(
                lambda z: others.dp_rdp(without_replacement(z), 1e-5, others.REPLACE), 2.0, 0.5, 8.0
            )
        },
        1.0,
    ),
    "calibrate, Laplace": (
        lambda: calibrate.noise_multiplier(lambda b: Repeated(LaplaceEvent(b), 100), 2.0, 1e-5),
        {
            "dp-accounting-pld": lambda: their_noise(
                lambda b: others.dp_pld(others.steps(dp.LaplaceDpEvent(b), 100), 1e-5, 1e-3), 2.0, 5.0, 60.0
            )
        },
        1.0,
    ),
    "calibrate, whole rounds": (
        lambda: calibrate.noise_multiplier(lambda z: Repeated(Sampled(steps(z, 0.05, 20), 0.1), 30), 1.0, 1e-5),
        {},  # nobody else prices a sample of whole rounds
        1.0,
    ),
    "calibrate, 300 unlike steps": (
        lambda: calibrate.noise_multiplier(schedule, 2.0, 1e-5),
        {
            "dp-accounting-rdp": lambda: their_noise(
                lambda z: others.dp_rdp(
                    dp.ComposedDpEvent([theirs(z * (1 - 0.001 * i), 0.02, 1) for i in range(300)]), 1e-5
                ),
                2.0,
                0.5,
                4.0,
            )
        },
        1.0,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="words that the name must hold")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    args = parser.parse_args()
    for what, (ours, peers, goal) in (PRICES | CALIBRATIONS).items():
        if args.only not in what:
            continue
        seconds, found = best(args.repeat, ours)
        answer(what=what, who="sordino", seconds=round(seconds, 4), found=round(found, 5), goal_s=goal)
        for who, work in () if args.alone else peers.items():
            took, other = best(args.repeat, work)
            ratio = round(took / seconds, 1)
            answer(what=what, who=who, seconds=round(took, 3), found=round(other, 5), times_ours=ratio)


if __name__ == "__main__":
    main()
