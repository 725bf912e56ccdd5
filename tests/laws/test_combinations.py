"""Every private method with every algorithm: what a client's data can move, and how far."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from sordino.contract import local_sgd as training
from sordino.contract.site import ALGORITHM
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.core.types import Batch
from sordino.data.clients import ArrayClients
from sordino.runs import loop
from sordino.spec import legal
from support.methods import federation_of, let_out, play, rows
from support.problems import CLASSES, FEATURES, federation, job

CPU = torch.device("cpu")
RNG = Stream.research(21)
SIZES = (12, 5, 9, 7)
ALGORITHMS = plugin.available("algorithms")
CELLS = [
    (method, algorithm, unit)
    for method in ("dp-fedavg", "dp-sgd")
    for algorithm in ALGORITHMS
    for unit in legal.UNITS
    if legal.verdict(method, algorithm, unit).allowed
]
CENTRAL, INSIDE = ([c for c in CELLS if c[0] == m] for m in ("dp-fedavg", "dp-sgd"))


def dealt(pairs):
    """The clients with three users each."""
    x, y = (torch.cat(t) for t in zip(*pairs, strict=True))
    sizes = [len(p[1]) for p in pairs]
    owners = np.concatenate([100 * k + np.arange(n) * 3 // n for k, n in enumerate(sizes)])
    return ArrayClients(x, y, sizes, owners)


@functools.cache
def base(method, unit):
    return job(method=method, clients=dealt(federation(SIZES)), unit=unit, learning_rate=0.5)


def made(method, algorithm, unit, z=0.7, **options):
    """A job with an algorithm, and a noise multiplier of our choice."""
    found = base(method, unit)
    way = plugin.load("algorithms", algorithm)()
    local = replace(found.plan.local, steps=1 if algorithm == "fedsgd" else 3)
    if algorithm != "fedsgd":
        local = replace(local, batch_rate=0.6)
    plan = replace(found.plan, algorithm=way, local=way.local(local), noise_multiplier=z, server_lr=way.server_lr)
    return replace(found, plan=plan, method=replace(found.method, **options))


def replayed(job, clients, states, federation=None):
    """The rows of each of the rounds that begin with these states: the public transcript is given."""
    federation = federation or federation_of(job, clients=clients, rng=RNG)
    return [rows(job, range(clients.count), state, federation) for state in states]


def transcript(job):
    """The states that a run on the usual data goes through; more of them where clients keep something."""
    rounds = 3 if job.plan.algorithm.keeps(loop.begin(job), 1).shape[1] else 2
    states, federation = [loop.begin(job)], federation_of(job, rng=RNG)
    for _ in range(rounds - 1):
        states.append(play(job, state=states[-1], federation=federation, rng=RNG).after)
    return states


def wild(seed=0):
    """Finite, and so large that outputs, losses and gradients overflow in some clients."""
    pairs = federation(SIZES, seed)
    return dealt([(x * 10.0**power, y) for (x, y), power in zip(pairs, (0, 3, 20, 38), strict=True)])


@pytest.mark.parametrize("cell", CENTRAL, ids=" ".join)
def test_no_message_is_longer_than_the_clip_whatever_the_data(cell):
    job = made(*cell, clip=0.05)
    states = transcript(job)
    for clients in (job.federation.data, wild()):
        for sent in replayed(job, clients, states):
            norms = sent.double().norm(dim=1)
            assert bool((norms <= 0.05).all()), norms
            assert float(norms.max()) > 0.9 * 0.05  # the clients do pull


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_over_rounds_a_row_depends_on_its_client_alone_kept_state_included(cell):
    """The same public states, some rounds, other data in client 2: what the others send stays bit for bit."""
    job = made(*cell)
    states = transcript(job)
    before = replayed(job, job.federation.data, states)
    for other in (federation(SIZES, seed=5)[2], (torch.full((9, FEATURES), 3e38), torch.zeros(9, dtype=torch.int64))):
        pairs = federation(SIZES)
        pairs[2] = other
        for r, (a, b) in enumerate(zip(before, replayed(job, dealt(pairs), states), strict=True)):
            keep = [0, 1, 3]
            assert torch.allclose(a[keep], b[keep], rtol=1e-5, atol=1e-6), r
            assert torch.isfinite(b).all()
            assert not torch.equal(a[2], b[2])  # the test would see a change


# --- noise inside the clients


class Recorder:
    """The model's gradients, and what they were asked for."""

    path, reason = "", ""

    def __init__(self, real):
        self.real, self.asked = real, []

    def sums(self, weights, batch, clip, *, seeds=None, groups=None):
        found = self.real.sums(weights, batch, clip, seeds=seeds, groups=groups)
        self.asked.append((weights, batch, clip, groups, found))
        return found


class Fixed:
    """Clipped sums that know no data; exact ones as they are."""

    path, reason = "", ""

    def __init__(self, real, dim):
        self.real, self.dim, self.count = real, dim, 0

    def sums(self, weights, batch, clip, *, seeds=None, groups=None):
        if clip is None:
            return self.real.sums(weights, batch, clip, seeds=seeds, groups=groups)
        self.count += 1
        return RNG.at("fake", self.count).rows(range(len(batch.sizes))).normal(self.dim, like=weights)


def runs_of(job, clients, seen, unit):
    """The protected units in a batch, as lists of its records: found again by the records themselves."""
    whole = {row.numpy().tobytes(): i for i, row in enumerate(clients.x)}
    place = [whole[row.numpy().tobytes()] for row in seen.x]
    of = clients.users[place] if unit == "user" else np.array(place)
    return [np.flatnonzero(of == u) for u in np.unique(of)]


@pytest.mark.parametrize("cell", [c for c in INSIDE if c[1] != "ditto"], ids=" ".join)
def test_one_unit_moves_a_clipped_sum_by_at_most_the_clip(cell):
    """Every step of a round, every record (or user) of its batch taken out; on data that all want to be clipped."""
    clip = 0.3
    job = made(*cell, clip=clip)
    recorder = Recorder(job.model.gradients)
    clients = dealt([(20 * x, y) for x, y in federation(SIZES)])
    replayed(replace(job, model=replace(job.model, gradients=recorder)), clients, [loop.begin(job)])
    assert len(recorder.asked) == job.plan.local.steps
    longest = 0.0
    for weights, batch, asked, groups, total in recorder.asked:
        assert asked == clip
        owner = np.repeat(np.arange(len(batch.sizes)), batch.sizes)
        for records in runs_of(job, clients, batch, cell[2]):
            keep = np.setdiff1d(np.arange(len(batch.y)), records)
            sizes = tuple(np.bincount(owner[keep], minlength=len(batch.sizes)).tolist())
            lengths = None
            if groups is not None:
                ends = np.cumsum(groups)
                lengths = [n for n, end in zip(groups, ends, strict=True) if end - 1 not in records]
                assert len(lengths) == len(groups) - 1  # a run is a user's, no more and no less
            less = job.model.gradients.sums(
                weights, Batch(batch.x[keep], batch.y[keep], sizes), clip, seeds=[0] * 4, groups=lengths
            )
            moved = (total - less).double().norm(dim=1)
            mine = owner[records[0]]
            assert float(moved[mine]) <= clip * (1 + 1e-4)
            assert float(moved[[k for k in range(4) if k != mine]].max()) <= 1e-4
            longest = max(longest, float(moved[mine]))
    assert longest > 0.9 * clip


@pytest.mark.parametrize("cell", INSIDE, ids=" ".join)
def test_messages_know_the_data_through_noisy_gradients_only(cell, monkeypatch):
    """With gradients (and the noisy loss) that know nothing, the rows of all rounds are the same on any data."""
    job = made(*cell)
    if "losses" in job.plan.algorithm.needs:
        monkeypatch.setattr(training, "record_losses", lambda state, data, model: state.params.new_ones(len(data.y)))
    states = transcript(job)

    def sent(clients, gradients):
        model = replace(job.model, gradients=gradients)
        federation = federation_of(job, clients=clients, model=model, rng=RNG)
        found = torch.stack(replayed(job, clients, states, federation))
        return found, federation.store.read(ALGORITHM, range(4), job.plan.algorithm.keeps(states[0], 4))

    dim = job.model.layout.dim
    one, own = sent(job.federation.data, Fixed(job.model.gradients, dim))
    other, theirs = sent(dealt(federation(SIZES, seed=9)), Fixed(job.model.gradients, dim))
    assert torch.equal(one, other)
    assert torch.equal(own, theirs) == (cell[1] != "ditto")  # personal models are trained on the data as they are
    assert not torch.equal(sent(job.federation.data, job.model.gradients)[0], one)


def sure(job):
    """A model so sure of itself that its losses are far above any cap."""
    state = loop.begin(job)
    return replace(state, params=300 * state.params)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_one_unit_moves_the_released_loss_by_at_most_its_cap(unit):
    """q-FedAvg: what gets the noise is the sum of capped losses; a broken one counts as the cap."""
    job = made("dp-sgd", "q-fedavg", unit)
    cap = job.plan.algorithm.loss_clip
    state, longest = sure(job), 0.0
    pairs = [(x * 10.0**p, y) for (x, y), p in zip(federation(SIZES), (0, 1, 38, 38), strict=True)]

    def total(clients):
        (use,) = (u for u in let_out(job, state=state, clients=clients, rng=RNG) if u.release.name == "losses")
        assert use.x.bound == use.release.bound == cap
        return use.x.value

    clients = dealt(pairs)
    whole = total(clients)
    assert torch.isfinite(whole).all()
    for k, n in enumerate(SIZES):
        own = clients.users[clients.starts[k] : clients.starts[k + 1]]
        for gone in [own == u for u in np.unique(own)] if unit == "user" else np.eye(n, dtype=bool):
            keep = clients.starts[k] + np.flatnonzero(~gone)
            parts = [np.arange(clients.starts[j], clients.starts[j + 1]) if j != k else keep for j in range(4)]
            fewer = ArrayClients.split(clients.x, clients.y, parts, clients.users)
            moved = (whole - total(fewer)).abs()[:, 0]
            assert float(moved[k]) <= cap * (1 + 1e-5)
            assert float(moved[[j for j in range(4) if j != k]].max()) < 1e-4
            longest = max(longest, float(moved[k]))
    assert longest > 0.9 * cap


def test_without_the_cap_the_loss_would_move_further():
    """What the cap is for."""
    job = made("dp-sgd", "q-fedavg", "record")
    losses = training.record_losses(sure(job), job.federation.data.fetch(range(4), CPU), job.model)
    assert torch.isfinite(losses).all() and float(losses.max()) > 20 * job.plan.algorithm.loss_clip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("method", [m for m in legal.carriers() if m in ("none", "dp-sgd", "dp-fedavg")])
def test_a_round_in_which_nobody_answers_is_a_round_like_any_other(method, algorithm):
    unit = base(method, None).method.units[0]
    job = made(method, algorithm, unit)
    state = loop.begin(job)
    nobody, some = (play(job, cohort, state, rng=RNG) for cohort in ([], [0, 3]))
    assert nobody.sent["update"].shape == (0, some.sent["update"].shape[1])
    after = nobody.after
    assert torch.isfinite(after.params).all()
    assert torch.equal(after.params, state.params) == (
        method != "dp-fedavg"
    )  # where the server adds noise, it still does


def test_labels_alone_move_a_row_too():
    """A check of the checks: the laws above would see data that enters by its labels."""
    job = made("dp-fedavg", "fedavg", "client")
    other = dealt([(x, (y + 1) % CLASSES) for x, y in federation(SIZES)])
    states = [loop.begin(job)]
    assert not torch.allclose(replayed(job, job.federation.data, states)[0], replayed(job, other, states)[0], atol=1e-4)
