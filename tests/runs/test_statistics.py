"""Private statistics of the features: how far one unit moves them, how much noise, paid for once, kept for good."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import kstest, norm
from torch import nn

import sordino
from sordino.core import faults
from sordino.core.rng import Stream
from sordino.data.clients import ArrayClients
from sordino.measures import feature_moments
from sordino.privacy.events import GaussianEvent, Repeated
from sordino.runs import build, run, statistics
from sordino.runs.statistics import Standardise
from sordino.spec import spec
from support.killed import Killed, killing
from support.problems import CLASSES, FEATURES, federation, job, mlp, same_weights

SIZES = (5, 3, 4)
USERS = np.array([0, 0, 0, 1, 1, 10, 11, 11, 20, 20, 20, 21])
CASES = [("dp-sgd", "record"), ("dp-sgd", "user"), ("dp-fedavg", "client"), ("dp-fedavg", "user"), ("none", "record")]


def clients(x, users=USERS):
    return ArrayClients(x, torch.arange(len(x)) % CLASSES, SIZES if len(x) == 12 else [len(x)], users)


def made(method, unit, x=None, **keys):
    x = torch.randn(12, FEATURES, generator=torch.Generator().manual_seed(1)) if x is None else x
    wanted = {"method": method, "unit": unit, "standardise": True, "feature_bound": 2.0, "epsilon": 8.0} | keys
    return job(clients=clients(x), **wanted)


class Silent:
    """Gaussian noise that adds nothing and remembers what it was to be added to."""

    seen: list

    def __init__(self, z):
        self.z = z

    def event(self, split=1):
        return GaussianEvent(self.z)

    def apply(self, rows, rng, use):
        Silent.seen.append((rows.value.clone(), rows.bound, self.z, len(rng.ids)))
        return rows.value


def pre_noise(made, monkeypatch):
    Silent.seen = []
    monkeypatch.setattr(feature_moments, "Gaussian", Silent)
    statistics._noisy(made)
    return Silent.seen


@pytest.mark.parametrize(("method", "unit"), CASES[:4])
def test_one_unit_moves_the_sums_by_at_most_what_is_noised(method, unit, monkeypatch):
    """Each unit in turn at the corners of the box, in its middle, far outside, alone of its kind or with others."""
    base = torch.randn(12, FEATURES, generator=torch.Generator().manual_seed(2))
    job = made(method, unit, base)
    ((before, bound, z, _),) = pre_noise(job, monkeypatch)
    assert bound == pytest.approx(math.sqrt(2 * FEATURES)) and z == 20.0
    owner = np.repeat(np.arange(3), SIZES)
    central = method == "dp-fedavg"
    of = np.arange(12) if unit == "record" else USERS if unit == "user" else owner
    factor = 2.0 if method == "dp-fedavg" and unit == "user" else 1.0  # a client's mean changes: charged at z / 2
    far = 0.0
    for u in np.unique(of):
        found = []
        for value in (1e30, -1e30, 2.0, -2.0, 0.0):
            x = base.clone()
            x[of == u] = value
            job.federation.data = clients(x)
            ((after, _, _, rows),) = pre_noise(job, monkeypatch)
            found.append(after)
        assert rows == (1 if central else 3)
        nothing = found[-1]  # a unit of zeros adds nothing: as if it were not there
        for after in (before, *found[:-1]):
            moved = (after - nothing).norm(dim=1)
            assert float(moved.max()) <= bound * (1 + 1e-9)
            assert int((moved > 1e-9).sum()) <= 1  # one client's sums, or the only ones
            far = max(far, float(moved.max()))
        assert all(float((a - b).norm()) <= 2 * bound * (1 + 1e-9) for a in found for b in found)
    assert far > 0.999 * bound / (1 if unit in ("client", "record") or not central else 2)
    expected = GaussianEvent(20.0 / factor) if central else Repeated(GaussianEvent(20.0), 1)
    assert job.once == (expected,)


def test_fixed_batches_are_charged_for_a_replaced_record():
    found = made("dp-sgd", "record", batch_sampling="fixed", batch_rate=0.7)
    assert found.once == (Repeated(GaussianEvent(10.0), 1),)


@pytest.mark.parametrize(("method", "unit"), CASES)
def test_the_noise_is_z_times_the_sensitivity(method, unit):
    """Wide features of zeros: the shift is noise alone."""
    wide, z = 6000, 1e-3
    model = nn.Linear(wide, CLASSES)
    wanted = {"method": method, "unit": unit, "standardise": True, "epsilon": 8.0}
    found = job(model, clients(torch.zeros(12, wide)), **wanted)
    found = replace(found, spec=replace(found.spec, release_noise=z, feature_bound=3.0))
    shift, scale = statistics._noisy(found)
    if method == "none":
        assert not shift.any() and torch.allclose(scale, torch.tensor(0.03))
        return
    weight = {"record": 12, "user": 3 if method == "dp-fedavg" else 6, "client": 3}[unit]
    parties = 1 if method == "dp-fedavg" else 3
    std = 3.0 * z * math.sqrt(2 * wide) * math.sqrt(parties) / weight
    assert std < 0.5  # far from the clamp
    assert kstest(shift.numpy(), norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(shift.numpy(), norm(scale=1.1 * std).cdf).pvalue < 1e-3
    assert kstest(shift.numpy(), norm(scale=0.9 * std).cdf).pvalue < 1e-3


def test_without_noise_features_are_standardised():
    x = 3.0 + 0.5 * torch.randn(12, FEATURES, generator=torch.Generator().manual_seed(3))
    found = made("none", "record", x, feature_bound=10.0)
    statistics.release(found, None)
    seen = found.model.module[0](x)
    assert torch.allclose(seen.mean(0), torch.zeros(FEATURES), atol=1e-4)
    assert torch.allclose(seen.std(0, unbiased=False), torch.ones(FEATURES), atol=1e-3)


# --- runs


def keys(tmp_path, **more):
    wanted = {"standardise": True, "rounds": 4, "epsilon": 8.0, "device": "cpu", "out": str(tmp_path), "name": "it"}
    return wanted | {"checkpoint_seconds": 0.0, "learning_rate": 0.3, "mode": "research"} | more


def killed(point, model, pairs, **keys):
    with killing(point), pytest.raises(Killed):
        sordino.train(model, pairs, **keys)


@pytest.fixture
def released(monkeypatch):
    """Every pair of shift and scale that was drawn."""
    found, real = [], statistics._noisy

    def spy(job):
        found.append(real(job))
        return found[-1]

    monkeypatch.setattr(statistics, "_noisy", spy)
    return found


def test_drawn_once_and_part_of_the_promise(tmp_path, released):
    """mu^2 = 4 / z^2 + 1 / 20^2, in promise, plan and guarantee alike."""
    result = sordino.train(mlp(), federation(), **keys(tmp_path))
    assert len(released) == 1
    found = job(**keys(tmp_path))
    mu, epsilon = math.sqrt(4 / found.plan.z**2 + 1 / 400), result.guarantee.epsilon
    assert norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) == pytest.approx(
        1e-5, rel=1e-2
    )
    assert found.plan.z > job(**keys(tmp_path, standardise=False)).plan.z
    written = json.loads((result.folder / "public" / "plan.json").read_text())
    assert written["evaluation"]["releases"] == 1 and written["promise"]["epsilon"] == pytest.approx(epsilon)


def test_the_model_brings_its_layer(tmp_path, released):
    result = sordino.train(mlp(), federation(), **keys(tmp_path))
    ((shift, scale),) = released
    layer = result.model[0]
    assert isinstance(layer, Standardise) and torch.equal(layer.shift, shift) and torch.equal(layer.scale, scale)
    x = torch.randn(5, FEATURES)
    assert torch.equal(result.model(x), result.model[1]((x - shift) / scale))
    on_file = load_file(result.folder / "public" / "model.safetensors")
    assert torch.equal(on_file["0.shift"], shift) and torch.equal(on_file["0.scale"], scale)
    assert not any(p is layer.shift or p is layer.scale for p in result.model.parameters())


@pytest.mark.parametrize("mode", ["research", "secure"])
@pytest.mark.parametrize("point", ["merged", "saved", "recorded"])
def test_a_resumed_run_keeps_shift_and_scale_bit_for_bit(mode, point, tmp_path, released):
    killed(point, mlp(), federation(), **keys(tmp_path, mode=mode))
    result = sordino.train(mlp(), federation(), resume=tmp_path / "it")
    assert len(released) == 1
    assert torch.equal(result.model[0].shift, released[0][0]) and torch.equal(result.model[0].scale, released[0][1])
    if mode == "research":
        whole = sordino.train(mlp(), federation(), **keys(tmp_path, name="whole"))
        assert same_weights(whole.model, result.model)


@pytest.mark.parametrize("point", ["beginning", "saving"])
def test_a_secure_run_that_died_before_its_statistics_were_on_disk_draws_the_same(point, tmp_path, released):
    """The server may have seen the first ones: a second draw with other noise would be a release nobody paid for."""
    killed(point, mlp(), federation(), **keys(tmp_path, mode="secure"))
    before = json.loads((tmp_path / "it" / "private" / "ledger.json").read_text())["entries"]
    result = sordino.train(mlp(), federation(), resume=tmp_path / "it")
    assert len(released) == 2 and all(torch.equal(*pair) for pair in zip(*released, strict=True))
    assert torch.equal(result.model[0].shift, released[0][0]) and len(result.history) == 4
    after = json.loads((tmp_path / "it" / "private" / "ledger.json").read_text())["entries"]
    assert after - before == 4  # its rounds; the plan was charged once
    assert not (tmp_path / "it" / "private" / "statistics.key").exists()
    sordino.train(mlp(), federation(), **keys(tmp_path, mode="secure", name="other"))
    assert not torch.equal(released[2][0], released[0][0])


def test_a_baseline_can_be_resumed(tmp_path):
    private = build.build(spec.from_dict(keys(tmp_path)), mlp(), federation())
    run.execute(private, own_model=True)

    def hook(name):
        if name == "recorded":
            raise Killed

    faults.set_hook(hook)
    with pytest.raises(Killed):
        run.execute(run.without_privacy(private), own_model=True)
    faults.set_hook(None)
    assert len(sordino.train(mlp(), federation(), resume=tmp_path / "it-without-privacy").history) == 4


def test_badly_scaled_features_learn_with_it(tmp_path):
    """Columns from a hundredth to hundreds, far from zero: hopeless as they are, easy when standardised."""
    draw = torch.Generator().manual_seed(4)
    scales, shifts = torch.logspace(-2, 2, FEATURES), 300 * torch.rand(FEATURES, generator=draw)
    pairs = [(x * scales + shifts * (scales > 1), y) for x, y in federation((200,) * 6)]
    train, test = pairs[:5], pairs[5]

    def accuracy(**more):
        wanted = {"rounds": 15, "learning_rate": 1.0, "epsilon": 8.0, "feature_bound": 1000.0, "release_noise": 2.0}
        model = nn.Linear(FEATURES, CLASSES)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        wanted |= {"device": "cpu", "out": str(tmp_path), "evaluate_every": 15, "seed": 0} | more
        return sordino.train(model, train, test=test, **wanted).accuracy

    with_it, without = accuracy(standardise=True), accuracy()
    assert with_it > 0.85 and with_it > without + 0.1


def test_statistics_are_those_of_the_clients_not_of_the_test_data(tmp_path, released):
    far = (1e4 * torch.ones(9, FEATURES), torch.zeros(9, dtype=torch.int64))
    for name, test in (("a", None), ("b", far)):
        sordino.train(mlp(), federation(), test=test, **keys(tmp_path, name=name, rounds=1))
    assert torch.equal(released[0][0], released[1][0]) and torch.equal(released[0][1], released[1][1])


def test_seeds_draw_other_noise():
    one, other = (statistics._noisy(replace(made("dp-sgd", "record"), rng=Stream.research(s))) for s in (1, 2))
    assert not torch.equal(one[0], other[0])
