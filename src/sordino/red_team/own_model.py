"""How far one unit moves what the noise is added to, measured on the model, loss and plug-ins of a run.

Made-up clients train on batches of the real size, twice: as they are, and with one unit replaced by a canary (or taken
away). Outlets return the same outputs in both plays, so that whatever differs in their inputs is due to that unit. If
it moves an input further than was declared, because a layer looks at other records, the loss keeps a state or a batch
is clipped as a whole, then the noise is too small for it. For Gaussian noise the density ratio of the two worlds gives
the epsilon of that one use exactly: mu = moved / (noise multiplier x bound).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sordino.contract.method import started
from sordino.core.errors import RunError
from sordino.core.types import Batch, Model, State
from sordino.federations.rehearsal import Cast
from sordino.federations.replay import Passages, length, same
from sordino.privacy.accountants import gdp
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.runs import rehearse
from sordino.runs.job import Job

SCALES = {"far away": 100.0, "usual": 1.0, "blank": 0.0}  # canaries, and how large they are
MOST = 2000  # records of a made-up client at most
SLACK = 1e-3  # in bounds: rounding of float32 sums over that many records stays below it
LABELS = 10  # labels that a canary is tried with, at most


@dataclass(frozen=True)
class Move:
    """The farthest that one unit moved the input of an outlet, in units of its bound."""

    outlet: str
    canary: str
    change: str  # replaced, removed, other (of another client) or nothing (the same records once more)
    moved: float  # in bounds
    allowed: int  # in bounds
    epsilon: float | None = None  # that this one use shows, if the noise is Gaussian

    @property
    def fails(self) -> bool:
        """Return whether the unit moved the input further than declared."""
        return not self.moved <= self.allowed + SLACK

    def sentence(self) -> str:
        """Return in words what was measured."""
        what = {
            "replaced": f"Replacing one unit by a {self.canary} one",
            "removed": "Removing one unit",
            "other": f"A {self.canary} unit of another client",
            "nothing": "Training on the same records once more",
        }[self.change]
        shows = (
            "" if self.epsilon is None or not self.fails else f", which shows epsilon >= {self.epsilon:.3g} in one use"
        )
        return f"{what} moves the outlet {self.outlet} by {self.moved:.4g} bounds; {self.allowed} are allowed{shows}."


def moves(job: Job) -> tuple[Move, ...]:
    """Return how far units move the inputs of the outlets of a job, the farthest of each kind.

    Raises:
        RunError: if the method breaks its contract in another way, such as a value that leaves past an outlet.
    """
    found: dict[tuple[str, str], Move] = {}
    if not rehearse.promising(job.method.releases(job.plan)):
        return ()
    for canary, scale in SCALES.items():
        for move in _played(job, canary, scale):
            key = move.outlet, move.change
            if key not in found or move.moved > found[key].moved:
                found[key] = move
    return tuple(found.values())


def _played(job: Job, canary: str, scale: float) -> list[Move]:
    rehearsal = rehearse.prepared(job, batch_size(job), scale, full=True)
    work, cast = rehearsal.work, _with_canary(rehearsal.cast, rehearsal.work.model)
    method, plan, model = work.method, work.plan, work.model
    state = started(method, State(model.layout.read(model.module)), model.layout, plan)
    out: list[Move] = []
    for number in (0, plan.rounds - 1):
        state = replace(state, round=number)
        if method.over(state, plan):
            break
        for phase in method.phases:
            message, first = rehearsal.play("first", cast.first, phase, state)
            again = rehearsal.play("other", cast.first, phase, state, first)[1]
            changed = rehearsal.play("changed", cast.changed, phase, state, first)[1]
            out += _unequal(first, again, canary) + _moved(job, cast, first, changed, canary, number)
            state = rehearsal.after(phase, message, state, rehearsal.rng.at("round", number))
    return out


def _with_canary(cast: Cast, model: Model) -> Cast:
    """Return the cast in which the unit that is taken away is a canary too, if it is a single record.

    Of several candidates (the canary and its mirror image, with every label) the one is taken whose gradient points
    most against that of the other records: a batch that is clipped as a whole then turns round.
    """
    gone = [k for k, client in enumerate(cast.ids) if client in cast.removed]
    if not gone or cast.first.groups is not None or not cast.first.x.is_floating_point():
        return cast
    ends = [sum(cast.first.sizes[: k + 1]) for k in range(len(cast.ids))]
    source = ends[next(k for k, client in enumerate(cast.ids) if client in cast.replaced)] - 1
    x, y = cast.first.x.clone(), cast.first.y.clone()
    labels = y[:1] if y.is_floating_point() else torch.unique(y)[:LABELS]
    if y.ndim > 1:
        labels = y[:1]
    many = torch.cat([cast.changed.x[source : source + 1].expand(len(labels), *x.shape[1:]) * s for s in (1, -1)])
    weights, targets = model.layout.read(model.module), torch.cat([labels, labels])
    each = model.gradients.sums(weights, Batch(many, targets, (1,) * len(many)), None, seeds=[0] * len(many))
    for k in gone:
        others = Batch(
            x[ends[k] - cast.first.sizes[k] : ends[k] - 1], y[ends[k] - cast.first.sizes[k] : ends[k] - 1], ()
        )
        total = model.gradients.sums(weights, replace(others, sizes=(len(others.y),)), None, seeds=[0])[0]
        size = each.norm(dim=1)
        best = int(torch.where(size > 0.1 * size.max(), each @ total / size, torch.inf).argmin())
        x[ends[k] - 1], y[ends[k] - 1] = many[best], targets[best]
    return replace(cast, first=replace(cast.first, x=x, y=y))


def batch_size(job: Job) -> int:
    """Return the number of records in a batch of the largest client, as the plan expects it."""
    most = job.plan.sizes[-1]
    return max(2, min(MOST, round(job.plan.local.expected_batch(most))))


def _unequal(first: Passages, again: Passages, canary: str) -> list[Move]:
    """Return by how much inputs differ between two trainings on the same records."""
    out = []
    for place, before in first.items():
        for one, other in zip(before, again[place], strict=True):
            if not same(one.value, other.value):
                moved = length(other.value.double() - one.value.double(), one.release)
                out.append(Move(place[0], canary, "nothing", moved / float(one.release.bound or 1.0), 0))
    return out


def _moved(job: Job, cast: Cast, first: Passages, changed: Passages, canary: str, number: int) -> list[Move]:
    """Return by how much inputs differ between the two worlds."""
    out = []
    for (outlet, client), before in first.items():
        for use, (one, other) in enumerate(zip(before, changed[outlet, client], strict=True)):
            if client in cast.removed and (use or number):
                break  # later steps divide by the public size, which has changed
            release = one.release
            moved = length(other.value.double() - one.value.double(), release) / float(release.bound or 1.0)
            change = "replaced" if client in cast.replaced else "removed" if client in cast.removed else "other"
            allowed = {"replaced": release.swing, "removed": 1}.get(change, 0)
            mechanism, epsilon = release.mechanism, None
            if isinstance(mechanism, Gaussian) and moved > 0:
                epsilon = gdp.epsilon_of_mu(moved / mechanism.noise_multiplier, job.spec.delta)
            out.append(Move(outlet, canary, change, moved, allowed, epsilon))
    if not out:
        raise RunError("no outlet was used, so that nothing could be measured.")
    return out
