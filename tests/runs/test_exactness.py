"""Exact noise in runs: where the mechanism is swapped, what is claimed of it, and that no record has a say in that."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from sordino.contract import pricing
from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.methods.nbafl import NbAFL
from sordino.privacy.lattice import Lattice
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from sordino.runs import exactness, loop
from support.methods import arrived, play, rows
from support.problems import federation, job, linear

CLAIMS = [  # method, keys, viewer, whether floating point is inside the proof
    ("dp-sgd", {}, "server", True),
    ("dp-sgd", {"batch_rate": 0.5}, "server", True),
    ("dp-sgd", {"precision": "bfloat16"}, "server", False),
    ("fedsdp", {}, "server", True),
    ("nbafl", {}, "server", True),
    ("nbafl", {}, "public", True),  # the price counts on the noise of all clients in one sum, of whole numbers
    ("nbafl", {"downlink": 0.5}, "server", True),
    ("nbafl", {"downlink": 0.5}, "public", False),  # the sum is rounded between the clients' noise and the server's
    ("nbafl", {"dropout": "0.1"}, "server", True),
    ("nbafl", {"channel": "secure-sum"}, "server", True),
    ("nbafl", {"channel": "secure-sum"}, "client", True),
    ("dp-fedavg", {"adaptive_clip": True}, "public", True),
    ("dp-fedavg", {}, "server", False),  # to which nothing is promised
    ("fed-cdp", {}, "server", False),
    ("adaptive-noise", {}, "server", False),
    ("dp-ftrl", {}, "public", False),
    ("udp-fl", {"mechanism": "laplace"}, "server", False),
    ("dp-sgd", {"channel": "secure-sum"}, "server", True),
    ("dp-sgd", {"channel": "secure-sum", "batch_rate": 0.5}, "server+2", True),
    ("dp-sgd", {"channel": "secure-sum"}, "client", True),
    ("geodp", {"channel": "secure-sum"}, "server", True),
    ("fed-cdp", {"channel": "secure-sum"}, "server", False),
    ("adaptive-noise", {"channel": "secure-sum"}, "server", False),
]


@pytest.mark.parametrize(("method", "keys", "viewer", "exact"), CLAIMS)
def test_a_guarantee_says_exact_where_the_whole_argument_closes(method, keys, viewer, exact):
    made = job(method=method, mode="secure", **keys)
    found = made.guarantee(viewer, 3, 3)
    assert found.exact is exact
    assert ("exactly, on a lattice" in found.sentence()) is exact
    if not exact and found.epsilon < float("inf"):
        assert "in floating point" in found.sentence() and made.doubt(viewer)


def test_a_seeded_run_has_float_noise_and_the_price_is_the_same():
    research, secure = job(method="nbafl"), job(method="nbafl", mode="secure")
    kinds = [type(pricing.declared(made.method, made.plan)[0].mechanism) for made in (research, secure)]
    assert kinds == [Gaussian, RoundedGaussian]
    assert research.plan.z == secure.plan.z and research.promise.epsilon == secure.promise.epsilon
    assert not research.promise.exact


def test_what_leaves_a_client_lies_on_the_lattice():
    made = job(method="nbafl", mode="secure", module=linear())
    assert rows(made).dtype == torch.int32  # everyone answers: whole numbers, whose sum is exact
    some = job(method="nbafl", mode="secure", module=linear(), client_rate=0.5)
    sent, step = rows(some).double(), Lattice(1.0, made.plan.dim).step
    assert torch.equal(sent / step, (sent / step).round())
    plain = rows(job(method="nbafl", module=linear()))  # seeded: floats
    assert not torch.equal(plain.double() / step, (plain.double() / step).round())


@pytest.mark.parametrize("channel", ["direct", "secure-sum"])
@pytest.mark.parametrize("method", ["nbafl", "dp-sgd"])
def test_a_model_follows_the_sum_of_whole_numbers_alone(method, channel):
    """Where the public is priced by the noise of several clients, the server adds integers up and then makes floats."""
    made = job(method=method, mode="secure", channel=channel, module=linear())
    played, state = play(made), loop.begin(made)
    if method == "dp-sgd" and channel == "direct":
        assert played.sent["update"].is_floating_point()
        return
    (release,) = pricing.declared(made.method, made.plan)
    points = played.sent[release.name].long()
    total = release.mechanism.floats(points.sum(dim=0, keepdim=True), release.bound, torch.float32)
    assert torch.equal(played.seen[release.name], total)
    other = Message({release.name: torch.cat([points.sum(dim=0, keepdim=True), 0 * points[1:]])})
    after = made.method.merge(state, arrived(made.method, made.plan, state, other), made.plan)
    assert torch.equal(after.params, played.after.params)


def test_exact_and_float_noise_give_the_same_step(monkeypatch):
    """Whole numbers through a secure sum move the model as floats do, which shows where there is almost no noise."""
    after = []
    for mode in ("secure", "research"):
        made = job(method="dp-sgd", mode=mode, channel="secure-sum", module=linear(), learning_rate=1.0)
        made = replace(made, plan=replace(made.plan, noise_multiplier=1e-6))
        after.append(play(made).after.params)
    assert torch.allclose(*after, atol=1e-4)


def test_a_row_that_was_changed_or_weighed_is_no_sum_of_whole_numbers():
    @dataclass(frozen=True)
    class Halved(NbAFL):
        def train(self, state, site):
            message, own = super().train(state, site)
            return Message({"update": message["update"] / 2}), own

    @dataclass(frozen=True)
    class Weighed(NbAFL):
        def train(self, state, site):
            message, own = super().train(state, site)
            return replace(message, weight=torch.ones(len(message))), own

    for kind in (Halved, Weighed):
        made = replace(job(method="nbafl", mode="secure"), method=kind())
        with pytest.raises(RunError, match="unchanged and without weights"):
            play(made)


def test_too_many_records_keep_the_caveat():
    made = job(method="dp-sgd", mode="secure", clients=federation((900,) * 2))
    assert made.plan.exact.gradients is None and "900 records" in made.plan.exact.reason
    assert not made.promise.exact


def test_what_is_said_of_it_follows_no_record(monkeypatch):
    seen, real = [], exactness.of_run

    def watched(spec, method, plan, model, sample):
        seen.append(sample)
        return real(spec, method, plan, model, sample)

    monkeypatch.setattr(exactness, "of_run", watched)
    job(method="dp-sgd", mode="secure")
    assert len(seen) == 1 and not seen[0].any() and seen[0].shape == (1, 20)
