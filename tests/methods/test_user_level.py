"""Users as the unit: clipped as a whole, drawn as a whole, bounded, and charged in every client they are in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, kstest, norm
from torch import nn

import sordino
from sordino.contract import clipped_steps
from sordino.core import faults
from sordino.core.errors import DataError, RunError, SpecError
from sordino.core.rng import Stream
from sordino.data.clients import ArrayClients, adopt
from sordino.privacy.events import Composed, GaussianEvent, Repeated
from sordino.privacy.tightest import epsilon
from sordino.runs import loop, prepare
from sordino.spec import spec
from support.killed import Killed
from support.methods import federation_of
from support.problems import federation, job, mlp, same_weights

CPU = torch.device("cpu")
RNG = Stream.research(31)
SIZES = (9, 6, 12)
RUNS = ((1, 5, 3), (2, 2, 2), (4, 1, 1, 6))  # records of each client's users
USERS = np.concatenate([np.repeat(100 * k + np.arange(len(r)), r) for k, r in enumerate(RUNS)])


def clients(scale=20.0, seed=0):
    x, y = (torch.cat(t) for t in zip(*federation(SIZES, seed), strict=True))
    return ArrayClients(scale * x, y, SIZES, USERS)


def made(z=1e-9, held=None, **keys):
    found = job(clients=held or clients(), unit="user", **({"method": "dp-sgd", "learning_rate": 1.0} | keys))
    return replace(found, plan=replace(found.plan, noise_multiplier=z))


def moved(job, rng=RNG, **local):
    plan = replace(job.plan, local=replace(job.plan.local, **local))
    sent = federation_of(job, plan, rng=rng).ask("train", loop.begin(job), range(3))
    users = torch.tensor([float(len(g)) for g in job.federation.data.fetch(range(3), CPU).groups])
    assert torch.allclose(sent.weight, users / plan.mean_client)  # a client weighs as much as it has users
    return sent["update"]


def gradient(module, x, y):
    module.zero_grad()
    nn.functional.cross_entropy(module(x[None]), y[None]).backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


def test_a_user_s_mean_gradient_is_clipped_as_a_whole():
    """By hand: one user after the other, divided by the number of users."""
    job, clip = made(clip=0.5), 0.5
    module, rows, start = loop.trained(job, loop.begin(job).params), moved(job), 0
    one_by_one = moved(
        made(clip=clip, held=ArrayClients(job.federation.data.x, job.federation.data.y, SIZES, np.arange(27)))
    )
    for k, lengths in enumerate(RUNS):
        total = 0
        for n in lengths:
            own = [
                gradient(module, job.federation.data.x[i], job.federation.data.y[i]) for i in range(start, start + n)
            ]
            mean = torch.stack(own).mean(0)
            total, start = total + mean * min(1.0, clip / float(mean.norm())), start + n
        assert torch.allclose(rows[k], -total / len(lengths), atol=1e-5)
        assert float((-total / len(lengths)).norm()) > 0.01
    assert not torch.allclose(rows, one_by_one, atol=1e-3)  # each record clipped for itself is something else


def test_the_noise_of_a_user_s_client_is_z_clip_over_the_expected_users():
    wide = nn.Linear(4000, 1)
    nn.init.zeros_(wide.weight), nn.init.zeros_(wide.bias)
    zeros = ArrayClients(torch.zeros(27, 4000), torch.zeros(27), SIZES, USERS)
    found = job(wide, zeros, "squared_error", unit="user", method="dp-sgd", learning_rate=1.0, clip=0.4)
    found = replace(found, plan=replace(found.plan, noise_multiplier=3.0))
    rows = moved(found, batch_rate=0.5)
    users = torch.tensor([max(1.0, 0.5 * len(lengths)) for lengths in RUNS])[:, None]
    noise = (rows * users / (3.0 * 0.4)).flatten().numpy()
    assert kstest(noise, norm.cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1).cdf).pvalue < 1e-3
    by_records = (rows * torch.tensor(SIZES)[:, None] / 2 / (3.0 * 0.4)).flatten().numpy()
    assert kstest(by_records, norm.cdf).pvalue < 1e-3


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_users_are_drawn_whole_at_the_rate_that_is_charged(sampling):
    job = made(batch_sampling=sampling)
    plan = replace(job.plan, local=replace(job.plan.local, batch_rate=0.4))
    data, draws = job.federation.data.fetch(range(3), CPU), 1500
    place = {row.numpy().tobytes(): i for i, row in enumerate(data.x)}
    came = np.zeros((draws, 10), bool)
    names = list(dict.fromkeys(USERS.tolist()))
    for i in range(draws):
        batch = clipped_steps.batch_of(data, plan, sampling, RNG.at("draw", i).rows(range(3)))
        found = USERS[[place[row.numpy().tobytes()] for row in batch.x]]
        who, counts = np.unique(found, return_counts=True)
        assert [np.sum(u == USERS) for u in who] == counts.tolist()  # all of a user or nothing
        assert [n for client in batch.groups for n in client] == [np.sum(u == USERS) for u in dict.fromkeys(found)]
        assert batch.sizes == tuple(int(np.sum(found // 100 == k)) for k in range(3))
        came[i] = np.isin(names, who)
    for u, name in enumerate(names):
        users = len(RUNS[name // 100])
        rate = 0.4 if sampling == "poisson" else max(1, int(0.4 * users)) / users
        assert binomtest(int(came[:, u].sum()), draws, rate).pvalue > 1e-3
        assert rate <= clipped_steps.taken(plan, users) / users or sampling == "poisson"
    if sampling == "poisson":  # two users of one client come independently
        both = int((came[:, 0] & came[:, 1]).sum())
        assert binomtest(both, draws, 0.16).pvalue > 1e-3 and binomtest(both, draws, 0.4).pvalue < 1e-3


def test_one_broken_record_takes_its_user_out_and_no_one_else():
    held = clients()
    held.x[3] = 3e38  # of client 0's second user, records 1 to 5
    broken, whole = moved(made(held=held)), moved(made())
    assert torch.isfinite(broken).all() and torch.equal(broken[1:], whole[1:])
    without = ArrayClients(
        held.x[[0, *range(6, 27)]], held.y[[0, *range(6, 27)]], (4, 6, 12), USERS[[0, *range(6, 27)]]
    )
    rest = moved(made(held=without))[0] * 2 / 3  # two users, divided by two
    assert float((broken[0] - rest).norm()) <= 1.0 / 3 + 1e-5  # what is left of the user is within its clip


def test_views_of_a_user_s_pictures_are_clipped_with_the_user(monkeypatch):
    """Three views of every record: the runs that are clipped are three times as long, and hold nobody else's."""
    x = torch.arange(27.0)[:, None, None, None].expand(27, 1, 6, 6).contiguous()  # a picture shows whose it is
    held = ArrayClients(x, torch.arange(27) % 3, SIZES, USERS)
    found = job(
        nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), held, unit="user", method="dp-sgd", augment="flip", views=3
    )
    seen, real = [], found.model.gradients.sums
    monkeypatch.setattr(found.model.gradients, "sums", lambda w, b, c, **k: seen.append((b, k)) or real(w, b, c, **k))
    moved(found)
    ((batch, keys),) = seen
    assert keys["groups"] == [3 * n for lengths in RUNS for n in lengths]
    owners = USERS[batch.x[:, 0, 0, 0].long()]
    assert all(len(set(part.tolist())) == 1 for part in np.split(owners, np.cumsum(keys["groups"])[:-1]))


# --- bounds


def bounded(users, **keys):
    wanted = spec.from_dict({"unit": "user"} | keys)
    return prepare.with_users(adopt(federation((12,) * 4)), users, wanted)[0]


OWN = [np.repeat([0, 1, 2, 3], 3) + 4 * (k // 2) for k in range(4)]  # every user in two clients, three records each


def test_a_user_s_records_may_stand_anywhere_in_its_client(tmp_path):
    keys = {
        "unit": "user",
        "clients_per_user": 2,
        "method": "dp-sgd",
        "rounds": 2,
        "device": "cpu",
        "out": str(tmp_path),
        "seed": 0,
    }
    order = np.arange(12).reshape(4, 3).T.flatten()  # the first record of every user, then the second, ...
    mixed = [(x[order], y[order]) for x, y in federation((12,) * 4)]
    one = sordino.train(mlp(), federation((12,) * 4), users=OWN, name="a", **keys)
    other = sordino.train(mlp(), mixed, users=[u[order] for u in OWN], name="b", **keys)
    assert same_weights(one.model, other.model)


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_records_beyond_the_bound_are_never_used(method, tmp_path):
    keys = {"unit": "user", "records_per_user": 2, "method": method, "rounds": 2, "device": "cpu", "seed": 0}
    found = bounded(OWN, records_per_user=2)
    assert np.unique(found.users, return_counts=True)[1].max() == 2 and found.most_clients_per_user() == 1
    kept = {row.numpy().tobytes() for row in found.x}
    pairs = federation((12,) * 4)
    other = [(torch.stack([v if v.numpy().tobytes() in kept else 1e6 * v for v in x]), y) for x, y in pairs]
    changed = sum(not torch.equal(a[0][i], b[0][i]) for a, b in zip(pairs, other, strict=True) for i in range(12))
    assert changed == 48 - len(found.x) > 0
    one, two = (
        sordino.train(mlp(), c, users=OWN, out=str(tmp_path), name=n, **keys) for c, n in ((pairs, "a"), (other, "b"))
    )
    assert same_weights(one.model, two.model)
    more = {k: v for k, v in keys.items() if k != "records_per_user"} | {"out": str(tmp_path), "name": "c"}
    assert not same_weights(one.model, sordino.train(mlp(), pairs, users=OWN, **more).model)  # they do matter


def test_a_run_is_not_resumed_with_other_users(tmp_path):
    def hook(name):
        if name == "recorded":
            raise Killed

    keys = {"unit": "user", "method": "dp-sgd", "rounds": 3, "device": "cpu", "out": str(tmp_path), "name": "it"}
    keys |= {"seed": 0}
    first = [np.arange(12) // 4 + 3 * k for k in range(4)]
    other = [np.minimum(np.arange(12) // 3, 2) + 3 * k for k in range(4)]  # as many users, other records
    faults.set_hook(hook)
    with pytest.raises(Killed):
        sordino.train(mlp(), federation((12,) * 4), users=first, **keys)
    faults.set_hook(None)
    with pytest.raises(RunError, match="must be the same"):
        sordino.train(mlp(), federation((12,) * 4), users=other, resume=tmp_path / "it")
    assert len(sordino.train(mlp(), federation((12,) * 4), users=first, resume=tmp_path / "it").history) == 3


def test_where_a_client_trains_on_records_its_steps_are_counted_in_records():
    """dp-fedavg clips messages, not users: twelve records in batches of six are two steps, however many users."""
    pairs = federation((12,) * 4)
    held = ArrayClients(*(torch.cat(t) for t in zip(*pairs, strict=True)), (12,) * 4, np.arange(48) // 4)
    keys = {"unit": "user", "batch_size": 6, "local_epochs": 1.0}
    assert job(clients=held, method="dp-fedavg", **keys).plan.mean_steps == 2
    with pytest.raises(SpecError, match="3 users"):
        job(clients=held, method="dp-sgd", **keys)


def test_a_user_in_more_clients_than_allowed_is_refused_where_nothing_bounds_it():
    x, y = (torch.cat(t) for t in zip(*federation((3, 3)), strict=True))
    with pytest.raises(DataError, match="are at 2 clients, but clients_per_user = 1"):
        job(clients=ArrayClients(x, y, (3, 3), np.array([0, 0, 1, 1, 2, 2])), unit="user")


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_the_promise_by_hand(method, m):
    """Three rounds, all clients, full batches: plain Gaussian noise; m clients pay m times, or move by 2 m clips."""
    made = job(clients=bounded(OWN, clients_per_user=m), unit="user", clients_per_user=m, method=method, epsilon=3.0)
    z = made.plan.z
    each = Repeated(GaussianEvent(z), 3 * m) if method == "dp-sgd" else Repeated(GaussianEvent(z / (2 * m)), 3)
    assert made.promise.epsilon == pytest.approx(epsilon(each, 1e-5), rel=1e-6)
    assert 2.98 < made.promise.epsilon <= 3.0 and made.promise.unit == "user"
    assert "user" in made.promise.sentence()
    single = job(clients=bounded(OWN), unit="user", method=method, epsilon=3.0).plan.z
    assert z / single == pytest.approx(np.sqrt(m) if method == "dp-sgd" else m, rel=1e-2)


def test_evaluations_and_statistics_of_a_user_in_two_clients():
    """Noise inside the clients: each of both pays; at the server: one noise for both, replaced ones move further."""
    keys = {"unit": "user", "clients_per_user": 2, "validation": 0.3, "evaluate_on": "validation", "epsilon": 8.0}
    keys |= {"standardise": True, "release_noise": 30.0, "rounds": 5, "evaluate_every": 2}
    for method, expected in (
        ("dp-sgd", Composed((Repeated(GaussianEvent(30.0), 6), Repeated(GaussianEvent(30.0), 2)))),
        ("dp-fedavg", Composed((Repeated(GaussianEvent(15.0), 3), GaussianEvent(30.0 / 4)))),
    ):
        made = job(clients=bounded(OWN, clients_per_user=2), method=method, **keys)
        released = Composed((*made.once, *made.apart))  # statistics of those who train, evaluations of the others
        assert epsilon(released, 1e-5) == pytest.approx(epsilon(expected, 1e-5), rel=1e-9)
