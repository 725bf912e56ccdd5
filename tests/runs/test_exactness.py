"""Exact noise in runs: where the mechanism is swapped, what is claimed of it, and that no record has a say in that."""

from __future__ import annotations

import pytest
import torch

from problems import federation, job, linear
from sordino.methods import pricing
from sordino.privacy.lattice import Lattice
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from sordino.runs import exactness
from support.methods import rows

CLAIMS = [  # method, keys, viewer, whether floating point is inside the proof
    ("dp-sgd", {}, "server", True),
    ("dp-sgd", {"batch_rate": 0.5}, "server", True),
    ("fedsdp", {}, "server", True),
    ("nbafl", {}, "server", True),
    ("nbafl", {}, "public", False),  # the price counts on the noise of all clients in one sum
    ("dp-fedavg", {"adaptive_clip": True}, "public", True),
    ("dp-fedavg", {}, "server", False),  # to which nothing is promised
    ("fed-cdp", {}, "server", False),
    ("adaptive-noise", {}, "server", False),
    ("dp-ftrl", {}, "public", False),
    ("udp-fl", {"mechanism": "laplace"}, "server", False),
    ("dp-sgd", {"channel": "secure-sum"}, "server", False),
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
    sent, step = rows(made).double(), Lattice(1.0, made.plan.dim).step
    assert torch.equal(sent / step, (sent / step).round())
    plain = rows(job(method="nbafl", module=linear()))  # seeded: floats
    assert not torch.equal(plain.double() / step, (plain.double() / step).round())


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
