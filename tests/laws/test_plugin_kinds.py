"""One plug-in of every kind, each one file of examples/plugins: it is found by its name, and the laws hold for it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest, logistic

import sordino
from sordino.attacks.base import Knowledge, Targets
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.data.load import load
from sordino.privacy import tightest
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Pure, Repeated
from sordino.runs import loop
from support.methods import play
from support.problems import federation, held_out, job, linear

ROOT = Path(__file__).parents[2] / "examples"
KINDS = {
    "methods": ("printed-form", "sign-bits", "skellam-sum", "two-phases"),
    "channels": ("half-precision",),
    "algorithms": ("sign-server",),
    "privacy.mechanisms": ("logistic",),
    "data.sets": ("tiny-blobs",),
    "attacks": ("update-norm",),
}


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, str(ROOT / "plugins"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_found_by_the_name_of_its_file(kind):
    theirs = [name for name in plugin.available(kind) if not plugin.ours(kind, name)]
    assert tuple(theirs) == KINDS[kind]
    assert all(plugin.load(kind, name) is not None for name in theirs)


# --- the mechanism


def test_the_mechanism_adds_the_noise_that_it_is_priced_for():
    noise = plugin.load("privacy.mechanisms", "logistic")(1.5)
    rows = Bounded(torch.zeros(2, 10_000, dtype=torch.float64), 0.5, norm=1)
    x = noise.add(rows, Stream.research(3).rows([0, 1])).flatten().numpy()
    assert kstest(x, logistic(scale=0.75).cdf).pvalue > 1e-3
    assert kstest(x, logistic(scale=0.825).cdf).pvalue < 1e-3
    assert float(x.std()) == pytest.approx(noise.std(0.5), rel=0.02)


def test_the_price_of_the_mechanism_holds_and_is_sharp():
    """The privacy loss of one use is bounded by 1 / noise_multiplier, and comes close to it far out."""
    noise = plugin.load("privacy.mechanisms", "logistic")(2.0)
    x = np.linspace(-60, 60, 4001)
    loss = np.abs(logistic(scale=2.0).logpdf(x) - logistic(loc=1.0, scale=2.0).logpdf(x))
    assert loss.max() <= 0.5 + 1e-9 and loss.max() > 0.499
    assert noise.event() == Pure(0.5) and tightest.epsilon(Repeated(noise.event(), 2), 1e-9) <= 1.0


# --- the channel


def test_the_channel_halves_the_bytes_and_changes_no_price():
    plain = job(method="nbafl", module=linear())
    half = job(method="nbafl", module=linear(), channel="half-precision")
    assert half.plan.z == plain.plan.z and half.promise.epsilon == plain.promise.epsilon
    one, two = play(plain), play(half)
    assert 2 * two.sent.bits == one.sent.bits
    assert torch.allclose(one.after.params, two.after.params, atol=0.02) and two.after.params.dtype == torch.float32


# --- the algorithm


def test_the_algorithm_moves_every_weight_by_the_same_amount():
    made = job(method="dp-sgd", module=linear(), algorithm="sign-server", server_step=0.03)
    state = loop.begin(made)
    moved = play(made, state=state).after.params - state.params
    assert torch.allclose(moved.abs(), torch.full_like(moved, 0.03), atol=1e-6)
    assert made.promise.epsilon == job(method="dp-sgd", module=linear()).promise.epsilon  # post-processing


# --- the dataset


def test_the_dataset_is_read_and_verified(tmp_path):
    data = load("tiny-blobs", str(ROOT / "data"))
    assert data.public and (len(data.y_train), len(data.y_test)) == (96, 24) and data.x_train.shape[1] == 2
    (tmp_path / "tiny_blobs.csv").write_text((ROOT / "data" / "tiny_blobs.csv").read_text().replace("0.", "1.", 1))
    with pytest.raises(sordino.SordinoError, match="tiny_blobs"):
        load("tiny-blobs", str(tmp_path))


# --- the attack


def test_the_attack_reads_views_alone_and_finds_who_is_unlike_the_others(tmp_path):
    clients = federation((12,) * 6)
    clients[2] = (20 * clients[2][0], clients[2][1])
    views = []
    keys = {"method": "none", "rounds": 2, "out": str(tmp_path), "seed": 0, "test": held_out(20)}
    sordino.train(linear(), clients, observe=views.append, **keys)
    batch = job(module=linear(), clients=clients).federation.data.fetch(range(6), torch.device("cpu"))
    attack, known = plugin.load("attacks", "update-norm")(), Knowledge(job(module=linear(), clients=clients).model)
    server = [v for v in views if v.viewer == "server"]
    scores = attack.score(server, known, Targets(batch, tuple(range(6))))
    assert len(scores) == 72 and set(np.argsort(scores)[-12:] // 12) == {2}
    with pytest.raises(
        sordino.SordinoError, match="needs the messages of single clients, which the server does not see"
    ):
        attack.score([replace(v, seen=None) for v in server], known, Targets(batch, tuple(range(6))))
    assert math.isfinite(scores.max())
