"""Made-up federations in which one unit can be seen as clearly as its clip allows: the worlds of an audit.

The network is a linear classifier that starts at zero. A canary is a record far out on one axis, so that its gradient
is clipped and points along the weights of that axis alone: a Dirac canary (Nasr et al. 2021, arXiv:2101.04535) that
went through the real pipeline of sampling, clipping, noise, channel and merge. A record at the origin has no gradient:
it stands for an absent one, and public sizes stay as they are. Where the relation is "replace", the other record has
the opposite label, and so the opposite gradient.

Canaries are placed in one of three ways:

    apart        one to a client, all on one axis; the server sees every client's row, whose noise is independent, so
                 that each client is an independent trial
    coordinates  many in one run, each on an axis of its own, whose noise the auditor takes to be independent
    runs         one to a run; each run is an independent trial, whatever adds the noise
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from sordino.attacks.base import Bools
from sordino.audits.bounds import Floats
from sordino.audits.game import Trials
from sordino.contract import pricing
from sordino.contract.method import Method
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.core.view import View
from sordino.data.clients import ArrayClients
from sordino.federations.base import Work
from sordino.federations.simulator import Simulator
from sordino.privacy import price, trust
from sordino.runs import build, loop, public_facts, returned
from sordino.runs.job import Job
from sordino.spec.spec import Spec

# Length of a canary and learning rate. Gradients of records, and updates of clients, exceed any usual clip; and no step
# moves the network's answer to a canary, so that its gradient stays what it was.
RECORD, CLIENT = (1e4, 1e-9), (1e-4, 1e8)
FEW = 4  # clients of a run in which one canary stands alone
WIDE = 1000  # canaries on axes of their own in one run
APART, COORDINATES, RUNS = PLACEMENTS = ("apart", "coordinates", "runs")
# keys of a spec that a made-up federation takes over; all others are about the data and the network
SAME = (
    *("method", "algorithm", "options", "epsilon", "delta", "unit", "viewer", "seed"),
    *("max_participations", "clients_per_user", "rounds", "client_sampling", "client_rate", "channel", "min_cohort"),
    *("allowed_dropouts", "dropout", "late", "slow", "joining", "local_steps", "optimizer", "momentum", "schedule"),
    *("warmup", "server_lr", "merge", "averaging"),
)


@dataclass(frozen=True)
class Probe:
    """A made-up federation with places for canaries, and the job that trains on it."""

    job: Job
    spec: Spec
    placement: str
    canaries: int  # places for canaries
    axes: int
    size: int  # records of a client
    relation: str
    length: float  # of a canary

    def batch(self, included: Bools) -> ArrayClients:
        """Return the clients' records with these canaries included and the others absent (or opposite)."""
        x, y = _records(self, included)
        clients = self.job.plan.population
        each = [self.size] * clients
        users = np.arange(clients * self.size) if self.spec.unit == "user" else None
        return ArrayClients(x, y, each, users, _tags(self.job.method, len(y)))


def epsilon_curve(job: Job) -> Callable[[float], float]:
    """Return the accounted epsilon of a job against its viewer, as a function of delta."""

    def curve(delta: float) -> float:
        return replace(job, spec=replace(job.spec, delta=delta)).promise.epsilon

    return curve


def of_job(job: Job, canaries: int, placement: str | None = None) -> Probe:
    """Return the made-up federation of a job: the same method, options, noise, rounds, draws and channel.

    Args:
        job: what is audited; its data and its network are left out.
        canaries: how many canaries there are (per run, where there are several runs).
        placement: one of PLACEMENTS; None: apart where the server sees the clients' own noise, else runs.
    """
    local, sizes = job.plan.local, job.plan.sizes
    rate, steps = max(local.rate(n) for n in sizes), max(local.count(n) for n in sizes)
    spec = replace(job.spec, batch_rate=rate, batch_size=None, local_steps=steps, local_epochs=None)
    noise = None if job.plan.multipliers else job.plan.noise_multiplier
    return probe(spec, canaries, placement, noise, job.viewer)


def probe(
    spec: Spec,
    canaries: int,
    placement: str | None = None,
    noise: float | None = None,
    viewer: str | None = None,
) -> Probe:
    """Return the made-up federation on which the method, the plan and the channel of a spec are audited.

    Args:
        spec: what is audited, with a batch_rate; its data and its network are left out.
        canaries: how many canaries there are (per run, where there are several runs).
        placement: one of PLACEMENTS; None: apart where the server sees the clients' own noise, else runs.
        noise: the noise multiplier of the run that is audited; None: calibrated anew to the spec's budget.
        viewer: whose view is audited; None: that of the spec's budget.
    """
    small = _spec(spec)
    unit, rate = spec.unit or spec.method_object().units[0], small.batch_rate or 1.0
    size = 1 if unit == "client" else min(200, max(2, math.ceil(1 / rate)))
    few = _few(small, viewer)
    first = _job(small, few, 2, size, noise, viewer)
    placement = placement or (APART if _shows_noise(first) else RUNS)
    if placement == APART and not _shows_noise(first):
        raise SpecError("clients are independent trials only if the server sees each one's row with its own noise.")
    axes = canaries if placement == COORDINATES else 2
    in_steps = spec.method_object().noisy_steps  # otherwise a client's update is clipped as one, so it holds one canary
    clients = {APART: canaries, RUNS: few, COORDINATES: few if in_steps else canaries}[placement]
    if placement == COORDINATES and in_steps:
        size = max(size, math.ceil(canaries / few))
    job = first if (clients, axes) == (few, 2) else _job(small, clients, axes, size, noise, viewer)
    planned = price.cost_to(job.viewer, pricing.planned(job.method, job.plan))
    many = canaries if placement != RUNS else 1
    return Probe(job, small, placement, many, axes, size, planned.relation, _scales(spec)[0])


def resized(world: Probe, canaries: int) -> Probe:
    """Return the made-up federation with another number of canaries."""
    return probe(world.spec, canaries, world.placement, world.job.plan.noise_multiplier, world.job.viewer)


def _spec(spec: Spec) -> Spec:
    """Return the spec of the made-up federation: method, plan and channel, in research mode."""
    keys = {name: getattr(spec, name) for name in SAME}
    keys |= {"mode": "research", "seed": spec.seed or 0, "device": "cpu", "learning_rate": _scales(spec)[1]}
    if spec.budgets is not None:  # every made-up client has the largest budget, which is what the run promises
        keys["budgets"] = f"{spec.epsilon!r}:1"
    return Spec(**keys, batch_rate=spec.batch_rate or 1.0, normalise="none")


def _few(spec: Spec, viewer: str | None) -> int:
    """Return the number of clients of a run with one canary: as few as its cohorts, merge and viewer allow."""
    viewers = [trust.viewer(who).colluders for who in (spec.viewer, viewer) if who is not None]
    return max(FEW, (spec.min_cohort or 0), spec.merging().fewest, max(viewers, default=0) + 2)


def _scales(spec: Spec) -> tuple[float, float]:
    """Return the length of canaries and the learning rate."""
    method = spec.method_object()
    return RECORD if method.noisy_steps else CLIENT


def _job(spec: Spec, clients: int, axes: int, size: int, noise: float | None, viewer: str | None) -> Job:
    """Return the job of a made-up federation, all of whose records are at the origin."""
    x, y = torch.zeros(clients * size, axes), torch.arange(clients * size) % 2
    users = np.arange(clients * size) if spec.unit == "user" else None
    held = ArrayClients(x, y, [size] * clients, users, _tags(spec.method_object(), len(y)))
    job = build.build(spec, _network(axes), held)
    if noise is not None and job.method.private:
        job = replace(job, plan=replace(job.plan, noise_multiplier=noise))
    return job if viewer is None else replace(job, viewer=viewer)


def _tags(method: Method, records: int) -> Tensor | None:
    """Return groups of private attributes for a method that knows some, in turn, beginning with none."""
    return torch.arange(records) % (getattr(method, "groups", 1) + 1) if method.tagged else None


def _network(axes: int) -> nn.Module:
    module = nn.Linear(axes, 2, bias=False)
    nn.init.zeros_(module.weight)
    return module


def _shows_noise(job: Job) -> bool:
    """Return whether the viewer is a server that sees rows with their senders, and clients add all the noise."""
    releases = pricing.declared(job.method, job.plan)
    viewer = trust.viewer(job.viewer)
    return viewer.kind == "server" and job.plan.channel.name == "direct" and all(r.where == "client" for r in releases)


def _records(world: Probe, included: Bools) -> tuple[Tensor, Tensor]:
    """Return the records of all clients: canaries in their places, everything else at the origin."""
    clients, size = world.job.plan.population, world.size
    x, y = torch.zeros(clients * size, world.axes), torch.arange(clients * size) % 2
    at, axis = _places(world)
    inside = torch.from_numpy(included)
    far = (
        torch.full((len(at),), world.length) if world.relation == "replace" else torch.where(inside, world.length, 0.0)
    )
    x[at, axis] = far
    y[at] = torch.where(inside, 1, 0) if world.relation == "replace" else torch.ones_like(at)
    return x, y


def _places(world: Probe) -> tuple[Tensor, Tensor]:
    """Return the record and the axis of every canary."""
    n = torch.arange(world.canaries)
    if world.placement == APART:
        return n * world.size, torch.zeros_like(n)
    if world.placement == RUNS:
        return n * 0, n * 0
    clients = world.job.plan.population
    return (n % clients) * world.size + n // clients, n


def run(world: Probe, included: Bools, seed: int) -> Floats:
    """Return what the viewer saw of every canary in all rounds of one run [canaries, numbers]."""
    job = world.job
    seen: list[Floats] = []
    rng = Stream.research(seed)
    data = world.batch(included)
    federation = Simulator(job.device, data, rng, job.spec.memory_gb, Stream.research(0), public_facts.of_clients(data))
    federation.open(Work(returned.checked(job), job.model, job.plan))
    viewer = trust.viewer(job.viewer)
    kind = "server" if viewer.kind == "server" else "public"
    name = job.viewer if viewer.colluders else kind

    def look(view: View) -> None:
        if view.viewer == name:
            seen.append(_shown(world, view))

    loop.unpaid(replace(job, federation=federation), rng, [look])
    return np.concatenate([*seen, _drift(world, seen)], axis=1)


def _drift(world: Probe, seen: list[Floats]) -> Floats:
    """Return, for each canary, how far all rounds together have moved along its gradient [canaries, 1].

    It is what an auditor who knows the canary looks at first. Models add up by themselves, messages do not.
    """
    total = seen[-1] if trust.viewer(world.job.viewer).kind != "server" else np.sum(_alike(seen), axis=0)
    weights = 2 if world.placement == COORDINATES else 2 * world.axes
    if total.shape[1] < weights:
        return total[:, :1]
    return np.asarray(total[:, :1] - total[:, weights // 2 : weights // 2 + 1])


def _alike(seen: list[Floats]) -> list[Floats]:
    """Return the views that are as wide as the last one: those of the last phase of a round."""
    return [rows for rows in seen if rows.shape == seen[-1].shape]


def _shown(world: Probe, view: View) -> Floats:
    """Return the numbers of a view that a canary can have moved [canaries, numbers]."""
    if view.seen is None:
        return _own(world, view.state.params[None])
    message = view.seen
    if world.placement == APART:
        ids = message.ids if message.ids is not None else np.arange(0)
        parts = [v.double().reshape(len(v), -1) for v in message.fields.values()]
        rows = torch.cat(parts, dim=1).numpy() if parts else np.zeros((0, 1))
        out = np.zeros((world.canaries, rows.shape[1]))
        out[ids] = rows
        return out
    if not all(v.is_floating_point() for v in message.fields.values()) and not message.summed:
        total = {k: v.double().sum(dim=0, keepdim=True) for k, v in message.fields.items()}
    else:
        total = {k: v.double() for k, v in message.total().fields.items()}
    wide = [v.reshape(1, -1) for v in total.values()]
    return np.concatenate([_own(world, v) for v in wide], axis=1)


def _own(world: Probe, row: Tensor) -> Floats:
    """Return the numbers on the axis of every canary, of a row [1, numbers] that belongs to the whole federation."""
    flat = row.double().reshape(-1)
    if world.placement != COORDINATES:
        return flat.numpy()[None].repeat(world.canaries, axis=0)
    if len(flat) != 2 * world.axes:
        return np.zeros((world.canaries, 0))  # a number beside the weights, which belongs to no axis
    return flat.reshape(2, world.axes).T.numpy()[: world.canaries]


def trials(world: Probe, count: int, seed: int = 0, told: Callable[[int, int], None] | None = None) -> Trials:
    """Return `count` trials with a canary and as many without it.

    Args:
        world: the made-up federation.
        count: the number of trials of each kind; apart and coordinates have as many as fit into whole runs.
        seed: of the noise; runs have seeds of their own.
        told: called with the number of runs done and of all runs.
    """
    one, zero = [], []
    each = max(1, world.canaries // 2)
    many = math.ceil(count / each) if world.placement != RUNS else 2 * count
    for k in range(many):
        included = np.arange(world.canaries) % 2 == 0 if world.placement != RUNS else np.array([k % 2 == 0])
        rows = run(world, included, seed * 1_000_003 + k)
        one.append(rows[included])
        zero.append(rows[~included])
        if told is not None:
            told(k + 1, many)
    return Trials(np.concatenate(one), np.concatenate(zero))


def coins(world: Probe, seed: int) -> Bools:
    """Return one fair coin for every canary."""
    return np.random.default_rng(seed).random(world.canaries) < 0.5
