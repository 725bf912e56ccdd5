"""Table 4 of Feng et al. (003): the run time of rounds with each mechanism, and of the search for their parameters."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sordino.methods.udp_fl import harmonizer, printed_harmonizer
from sordino.papers.base import Experiment, Outcome, Trial
from sordino.papers.feng import MECHANISMS, base
from sordino.privacy import geometry, tightest
from sordino.privacy.accountants import pld, rdp
from sordino.privacy.events import Event, GaussianEvent, Repeated, Sampled
from sordino.report.tables import size

ITERATIONS = (50, 100, 500, 1000)
CACHES = (
    harmonizer.choose, harmonizer.calibrated, geometry.dense_l1, harmonizer.ball, harmonizer.renyi,
    tightest.epsilon, pld.pair_of, rdp._curve,
)  # fmt: skip
_SECONDS = {
    "MNIST (50 clients)": (1049.71, 2056.34, 10500.80, 20803.10),
    "MNIST (100 clients)": (1108.91, 2196.13, 10934.62, 21579.99),
    "Medical (50 clients)": (644.97, 1328.23, 6482.50, 13177.98),
    "Medical (100 clients)": (714.02, 1445.75, 7064.78, 14353.64),
    "CIFAR-10 (50 clients)": (1808.67, 3515.08, 16443.23, 31956.76),
    "CIFAR-10 (100 clients)": (1873.93, 3653.36, 17215.17, 33562.24),
    "Computing Parameters": (50.50, 50.60, 51.60, 54.30),
}
SECONDS = {(row, n): v for row, all in _SECONDS.items() for n, v in zip(ITERATIONS, all, strict=True)}


def table4(scale: float) -> list[Trial]:
    """Return the runs of Table 4: 1000 rounds with 50 and with 100 clients; fifty rounds of ResNet-18.

    Each mechanism adds its noise as printed."""
    out = []
    for dataset, name, rounds in (
        ("mnist", "MNIST", 1000),
        ("medical-mnist", "Medical", 1000),
        ("cifar10", "CIFAR-10", 50),
    ):
        for clients in (50, 100):
            keys = base(dataset, scale, clients, rounds) | {"evaluate_every": max(1, rounds // 10)}
            for mechanism in MECHANISMS:
                settings = keys | {"method": "udp-fl-paper", "mechanism": mechanism, "epsilon": 6.0}
                out.append(Trial(f"{name} ({clients} clients), {mechanism}", float(rounds), "printed", 0, settings))
    return out


def _times(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a table of the time and traffic of the first rounds of each run; the search is timed by this call."""
    out = [
        "| | iterations | paper, seconds | ours, seconds | sent up | sent down |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for o in outcomes:
        for rounds in [n for n in ITERATIONS if n <= len(o.records)] or [len(o.records)]:
            part = o.records[:rounds]
            seconds = sum(float(r["seconds"]) for r in part)
            up, down = (size(sum(float(r[k]) for r in part)) for k in ("bytes_up", "bytes_down"))
            said = SECONDS.get((o.trial.row.rpartition(", ")[0], rounds))  # the paper does not say which mechanism
            shown = "" if said is None else f"{said:g}"
            out.append(f"| {o.trial.row} | {rounds} | {shown} | {seconds:.1f} | {up} | {down} |")
    _search(1)  # loads libraries
    for rounds in ITERATIONS:
        row = "Computing Parameters"
        out.append(f"| {row}, all mechanisms | {rounds} | {SECONDS[row, rounds]:g} | {_search(rounds):.2f} | | |")
        for mechanism in MECHANISMS:
            out.append(f"| {row}, {mechanism} | {rounds} | | {_calibration(mechanism, rounds):.2f} | | |")
    return out


def _search(rounds: int) -> float:
    """Return the seconds in which the Harmonizer calibrates and scores all mechanisms, starting from empty caches."""
    run = _from_nothing(rounds)
    begun = time.perf_counter()
    harmonizer.choose(harmonizer.HarmonizerSetting(run, 21_840, 6.0, 1e-5))
    return time.perf_counter() - begun


def _calibration(mechanism: str, rounds: int) -> float:
    """Return the seconds in which the noise of one mechanism is calibrated as printed, starting from empty caches."""
    run = _from_nothing(rounds)
    begun = time.perf_counter()
    harmonizer.calibrated(run, printed_harmonizer.leaf(mechanism), 6.0, 1e-5)
    return time.perf_counter() - begun


def _from_nothing(rounds: int) -> Event:
    """Empty the caches, and return the run whose noise is to be found."""
    for known in CACHES:
        known.cache_clear()
    return Repeated(Sampled(GaussianEvent(1.0), 0.05), 2 * rounds)


EXPERIMENTS = (
    Experiment(
        "003/table4",
        "Table 4: run time",
        "Ours: one process, one machine; the paper's: Flower, with a mechanism that it does not name. Noise as "
        "printed, epsilon 6. Of CIFAR-10 only fifty rounds were run. Computing Parameters is timed while this page is "
        "written, on one core of a processor: the search of the sound Harmonizer, then each mechanism's own scale as "
        "printed.",
        table4,
        x="iterations",
        kind="table",
        extra=_times,
    ),
)
