"""The audit of a run, or of a spec before its run: lower bounds on epsilon beside the accounted and the claimed one.

Nothing private is used and nothing is charged: the method, the noise, the draws and the channel of the run are played
on made-up records (red_team/probe.py), and its model and loss on made-up records of the right shape
(red_team/own_model.py). If canaries were planted in the run itself, their scores give a third bound (one run).

An audit can refute a guarantee; it never proves one.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sordino.audits import bounds, game
from sordino.audits.bounds import Lower
from sordino.contract import pricing
from sordino.core.errors import SpecError
from sordino.core.rounding import down, up
from sordino.privacy import price, trust
from sordino.red_team import own_model, probe
from sordino.red_team.own_model import Move
from sordino.red_team.probe import APART, COORDINATES, RUNS
from sordino.red_team.twin import Step
from sordino.runs.job import Job

CANARIES = 5000  # trials with and as many without a canary
WORK = 2e8  # most records whose gradients an audit computes
BOUNDS = 3  # bounds whose largest is shown: each has a third of the error that the confidence allows
RUN_COST = 3e4  # what a round of a small run costs besides, in records


@dataclass(frozen=True)
class PlayedGame:
    """One game of an audit: how it was played, and what it shows."""

    placement: str
    trials: int  # with a canary; as many without one
    runs: int
    shown: Lower  # free of assumptions if the trials are independent
    gaussian: Lower  # if the trade-off is Gaussian
    one_run: Lower | None  # free of assumptions, from canaries of one run
    refuted: bool
    at: float | None  # delta at which the claim fails

    @property
    def assumes(self) -> str:
        """Return what the bound `shown` takes for granted, in words; empty: nothing."""
        if self.placement == COORDINATES:
            return "noise on different coordinates is independent"
        return ""


@dataclass(frozen=True)
class Audit:
    """What an audit has shown about a run."""

    method: str
    unit: str
    relation: str
    viewer: str
    channel: str
    rounds: int
    delta: float
    confidence: float
    claimed: float | None  # by a paper, where that does not hold
    accounted: float  # of the whole run
    played: float  # accounted of the made-up plan, which has other clients and nothing outside its rounds
    trials: tuple[PlayedGame, ...]
    moves: tuple[Move, ...] = ()
    planted: Lower | None = None  # from canaries in the run itself
    notes: tuple[str, ...] = ()

    @property
    def alarm(self) -> bool:
        """Return whether the guarantee is refuted, with a confidence of 99.99 %."""
        return math.isfinite(self.played) and (any(t.refuted for t in self.trials) or any(m.fails for m in self.moves))

    @property
    def least(self) -> float:
        """Return the largest lower bound that needs no assumption."""
        free = [t.shown.epsilon for t in self.trials if not t.assumes]
        free += [t.one_run.epsilon for t in self.trials if t.one_run is not None]
        free += [] if self.planted is None else [self.planted.epsilon]
        return max(free, default=0.0)

    @property
    def least_gaussian(self) -> float:
        """Return the largest lower bound if the trade-off is Gaussian and coordinates are independent."""
        return max([t.gaussian.epsilon for t in self.trials], default=0.0)

    def sentence(self) -> str:
        """Return the third number in words."""
        sure = f"{100 * self.confidence:g} % confidence"
        if not math.isfinite(self.accounted):
            text = f"Nothing is promised against the {self.viewer}. Audited: at least {down(self.least, 2)} ({sure})."
            if self.claimed is not None and self.least > self.claimed:
                text += f" That refutes the claimed {self.claimed:g}."
            return text
        gauss = f", {down(self.least_gaussian, 2)} if the noise is Gaussian" if self.least_gaussian > self.least else ""
        text = f"Accounted: epsilon = {up(self.accounted)}. Audited: at least {down(self.least, 2)}{gauss} ({sure})."
        return text + (" ALARM: the guarantee is refuted." if self.alarm else "")

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        data = asdict(self) | {"alarm": self.alarm, "least": self.least, "least_gaussian": self.least_gaussian}
        return data | {"sentence": self.sentence(), "moves": [asdict(m) | {"fails": m.fails} for m in self.moves]}


def audit(
    job: Job,
    canaries: int = CANARIES,
    confidence: float = game.SHOWN,
    viewer: str | None = None,
    seed: int = 0,
    told: Step | None = None,
) -> Audit:
    """Audit the method, plan, channel, model and loss of a job on made-up records.

    Args:
        job: what is audited; its records are not looked at.
        canaries: trials with, and as many without, a canary; fewer where a run is so large that it would take long.
        confidence: of the bounds that are shown; an alarm needs 99.99 % whatever this is.
        viewer: whose view is audited; None: that of the run's budget.
        seed: of the noise of the audit.
        told: called with the progress.
    """
    who = str(trust.viewer(viewer)) if viewer is not None else job.viewer
    watched = replace(job, viewer=who)
    world = probe.of_job(watched, canaries * 2)
    played_epsilon, notes = world.job.promise.epsilon, []
    played = [_played(world, canaries, confidence, seed, told)]
    if world.placement == RUNS and math.isfinite(played_epsilon) and _has_axes(watched):
        played.append(_played(_on_axes(watched, canaries), canaries, confidence, seed, told))
    least = min(t.trials for t in played)
    if abs(watched.promise.epsilon - played_epsilon) > 1e-3 * played_epsilon and math.isfinite(played_epsilon):
        notes.append(
            f"the made-up plan is accounted at epsilon = {up(played_epsilon)}, with which the trials were compared: "
            "its clients and its network are others, and it releases nothing outside its rounds"
        )
    if least < canaries:
        notes.append(f"{least} trials of each kind instead of {canaries}, since a run of this plan takes long")
    if told is not None:
        told("own model", 0, 1)
    moved = own_model.moves(job)
    claim = job.method.claim(job.plan)
    cost = price.cost_to(who, pricing.planned(world.job.method, world.job.plan))
    return Audit(
        job.spec.method,
        cost.unit,
        cost.relation,
        who,
        world.job.plan.channel.name,
        world.job.plan.rounds,
        job.spec.delta,
        confidence,
        None if claim is None else claim.epsilon,
        watched.promise.epsilon,
        played_epsilon,
        tuple(played),
        moved,
        None,
        tuple(notes),
    )


def each(confidence: float) -> float:
    """Return the confidence of each of the bounds whose largest has this confidence."""
    return 1 - (1 - confidence) / BOUNDS


def _on_axes(job: Job, canaries: int) -> probe.Probe:
    """Return the made-up federation with many canaries on axes of their own."""
    return probe.of_job(job, min(2 * canaries, probe.WIDE), COORDINATES)


def _has_axes(job: Job) -> bool:
    """Return whether the viewer sees numbers that belong to single axes, as it does not where rows are rotated."""
    few = probe.of_job(job, 7, COORDINATES)  # rotated rows are filled up to a power of two, which 2 x 7 is not
    return job.plan.channel.name != "shuffler" and probe.run(few, probe.coins(few, 0), 0).shape[1] > 0


def _affordable(world: probe.Probe, canaries: int) -> int:
    """Return how many trials of each kind an audit can play in a few minutes."""
    plan = world.job.plan
    steps = plan.rounds * plan.local.count(plan.sizes[-1])
    if world.placement == RUNS:
        return max(100, min(canaries, int(WORK / (2 * steps * RUN_COST))))
    each = steps * (world.size if world.placement == APART else world.axes)
    return max(200, min(canaries, int(WORK / (2 * each))))


def _played(world: probe.Probe, canaries: int, confidence: float, seed: int, told: Step | None) -> PlayedGame:
    """Play the game on a made-up federation."""
    curve, delta = probe.epsilon_curve(world.job), world.job.spec.delta
    count = _affordable(world, canaries)
    if world.placement == APART and count < canaries:
        world = probe.resized(world, 2 * count)
    words = f"{'runs' if world.placement == RUNS else 'federations'} with canaries"
    many = probe.trials(world, count, seed, None if told is None else lambda k, n: told(words, k, n))
    sure = each(confidence)
    finding = game.play(many, curve if math.isfinite(curve(delta)) else lambda _: math.inf, delta, sure)
    one = None
    if world.placement != RUNS:
        included = probe.coins(world, seed + 17)
        drift = probe.run(world, included, 1_000_003 * (seed + 1) - 1)[:, -1]
        sign = np.sign(many.inside[:, -1].mean() - many.outside[:, -1].mean())
        one = bounds.one_run_scores(drift * sign, included, delta, sure)
    runs = len(many.inside) * 2 if world.placement == RUNS else max(1, math.ceil(2 * len(many.inside) / world.canaries))
    return PlayedGame(
        world.placement,
        len(many.inside),
        runs,
        finding.lower,
        finding.gaussian,
        one,
        finding.refuted and world.placement != COORDINATES,
        finding.at,
    )


def check_viewer(viewer: str | None) -> None:
    """Raise SpecError if an audit cannot look through the eyes of a viewer."""
    if viewer is not None and trust.viewer(viewer).kind == "client":
        raise SpecError("an audit plays the public or a server; another client sees what the public sees. Use public.")
