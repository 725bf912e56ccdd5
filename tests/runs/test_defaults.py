"""Tables with defaults: rows of unit length, charged statistics, a rate that follows from the noise, and warnings."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import sordino
from sordino.core import faults
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.measures import row_moments
from sordino.models import _rows
from sordino.models._rows import Midpoint, UnitRows, unit
from sordino.privacy.accountants import gdp
from sordino.privacy.algebra import gdp_mu_squared
from sordino.privacy.events import Composed
from sordino.runs import baseline, build, run, statistics, verdict
from sordino.spec import spec
from support.killed import Killed, killing


@pytest.fixture
def table(tmp_path):
    """tmp_path/t.npz: 900 training and 300 test records of two classes; one column is in other units than the rest."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1200, 6)).astype(np.float32)
    y = (x[:, 0] + 0.5 * x[:, 1] + 0.3 * draw.normal(size=1200) > 0).astype(np.int64)
    x[:, 5] = 1000 + 300 * x[:, 5]
    parts = {"train": slice(0, 900), "test": slice(900, 1200)}
    np.savez(
        tmp_path / "t.npz",
        classes=np.array(2),
        **{f"{k}_{p}": v[s] for p, s in parts.items() for k, v in (("x", x), ("y", y))},
    )
    return tmp_path


def keys(table, **more):
    usual = {"dataset": "t.npz", "data_dir": str(table), "clients": 5, "out": str(table / "runs"), "device": "cpu"}
    return usual | {"epsilon": 4.0, "seed": 0, "evaluate_every": 1000} | more


def made(table, **more):
    return build.from_spec(spec.from_dict(keys(table, **more)))


def trained(table, **more):
    return run.execute(made(table, **more), own_model=False)


@pytest.mark.parametrize("block", [1, 100, 1000])
def test_rows_are_the_same_bits_in_parts(monkeypatch, block):
    rows, x = UnitRows(37), 5 * torch.randn(50, 37, generator=torch.Generator().manual_seed(0))
    rows.centre(x.mean(0) / 100, 0.1, torch.rand(38, generator=torch.Generator().manual_seed(1)) + 0.5)
    whole = rows(x)
    monkeypatch.setattr(_rows, "BLOCK", block)
    assert torch.equal(rows(x), whole) and torch.equal(rows(x[0]), whole[0])
    assert rows(x[:0]).shape == (0, 38)


def test_rows_have_unit_length_whatever_the_columns_hold():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e30, -1e30], [1e-30, 0.0]])
    layer = UnitRows(2)
    assert torch.allclose(layer(x).norm(dim=1), torch.ones(4))
    assert torch.allclose(layer(x)[0], torch.tensor([3.0, 4.0, 1.0]) / math.sqrt(26))
    shift = torch.tensor([0.2, -0.1])
    layer.centre(shift, row_moments.middle(shift), torch.tensor([2.0, 1.0, 0.5]))
    direction, _ = unit(x[:1])
    by_hand = row_moments.centred(direction, shift) * torch.tensor([2.0, 1.0, 0.5])
    assert torch.allclose(layer(x[:1]), by_hand / by_hand.norm(), atol=1e-6)
    layer.reset()
    assert torch.allclose(layer(x)[0], torch.tensor([3.0, 4.0, 1.0]) / math.sqrt(26))


def test_defaults_learn_where_they_did_not(table):
    before = {"normalise": "none", "averaging": "none", "learning_rate": 0.1, "clip": 1.0}
    plain = [trained(table, **before, seed=s).accuracy for s in range(2)]
    assert min(trained(table, seed=s).accuracy for s in range(2)) > max(0.8, *plain) + 0.02


def test_the_releases_are_charged_and_the_total_is_the_budget(table):
    job = made(table)
    mu = gdp.mu_for(4.0, 1e-5)
    taken = gdp_mu_squared(Composed(job.once))
    assert taken == pytest.approx((0.35**2 + 0.25**2) * mu**2, rel=1e-6)
    assert gdp_mu_squared(job.plan_cost().event) == pytest.approx(mu**2, rel=1e-3)
    assert job.promise.epsilon <= 4.0
    assert not made(table, normalise="unit").once and not made(table, normalise="none").once


@pytest.mark.parametrize(
    ("more", "noises"),
    [({}, 5.0), ({"channel": "secure-sum"}, 5 / 4), ({"method": "dp-fedavg", "epsilon": 200.0}, 1.0)],
    ids=["direct", "secure-sum", "central"],
)
def test_the_mean_has_the_noise_that_is_charged(table, more, noises):
    """Rows of zeros: what is released is noise alone. A secure sum has noise for one client more than needed."""
    wide = 3000
    x = np.zeros((60, wide), np.float32)
    np.savez(
        table / "z.npz",
        x_train=x,
        y_train=np.arange(60) % 2,
        x_test=x[:4],
        y_test=np.arange(4) % 2,
        classes=np.array(2),
    )
    job = made(
        table,
        dataset="z.npz",
        epsilon=60.0 if "method" not in more else 200.0,
        **{k: v for k, v in more.items() if k != "epsilon"},
    )
    rows = job.rows or row_moments.RowNoise(2.0, 3.0, 0.1, "client" if "method" in more else "record", "method" in more)
    released = statistics._mean(job, rows.releases(wide)).numpy()
    units = 5 if "method" in more else 60
    std = rows.mean * math.sqrt(noises) / units
    assert released.std() == pytest.approx(std, rel=0.05)  # 3,000 draws: three deviations are 4 %


def test_rows_that_are_centred_alone_pay_for_one_release(table):
    """Its part of the budget is what brings the length of the noise to 0.03, and no more than that of the usual one."""
    job = made(table, normalise="centred", channel="secure-sum", epsilon=8.0)
    mu = gdp.mu_for(8.0, 1e-5)
    length = job.rows.deviation * math.sqrt(6 + 1)
    assert length < 0.03 * 0.35 and not job.rows.scaled
    assert gdp_mu_squared(Composed(job.once)) == pytest.approx((length / 0.03 * mu) ** 2, rel=1e-6)
    noise = job.rows.mean * math.sqrt(5 / 4) / 900 * math.sqrt(6 + 1)  # of five clients' shares four are enough
    assert noise == pytest.approx(0.03, rel=1e-6)
    assert gdp_mu_squared(job.plan_cost().event) == pytest.approx(mu**2, rel=1e-3)
    dear = made(table, normalise="centred", epsilon=0.5)
    assert gdp_mu_squared(Composed(dear.once)) == pytest.approx(0.35**2 * gdp.mu_for(0.5, 1e-5) ** 2, rel=1e-6)


def test_centred_rows_have_their_mean_taken_off_and_nothing_else(table):
    result = trained(table, normalise="centred", method="none", rounds=2, public_data=True)
    layer = result.model[0]
    x = torch.from_numpy(np.load(table / "t.npz")["x_train"])
    rows, _ = unit(x)
    assert torch.allclose(layer.shift, rows.mean(0), atol=1e-5) and torch.equal(layer.scale, torch.ones(7))
    expected = torch.cat([rows - rows.mean(0), torch.full((900, 1), 0.1)], 1)
    assert torch.allclose(layer(x), torch.nn.functional.normalize(expected), atol=1e-5)


def test_features_of_pictures_can_be_centred(tmp_path):
    """Maps become rows; the clip is for features, and so is the largest rate."""
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (44, 3, 16, 16), np.uint8), np.arange(44) % 2
    np.savez(tmp_path / "p.npz", x_train=x[4:], y_train=y[4:], x_test=x[:4], y_test=y[:4])
    more = {"dataset": "p.npz", "features": "colour-scattering", "model": "linear", "clients": 2}
    job = made(tmp_path, **more, normalise="centred", epsilon=1e4, rounds=3)
    assert job.federation.facts.x[0] == (267 * 64,) and job.method.clip == 0.1 and job.rows is not None
    assert 128 < job.plan.local.learning_rate <= 8192
    assert made(tmp_path, **more).federation.facts.x[0] == (267, 8, 8)  # as ever
    assert made(tmp_path, **more | {"features": "drawn-prior"}).spec.normalise == "centred"  # without being asked
    plain = made(tmp_path, **more | {"features": "drawn-prior", "method": "none", "public_data": True})
    assert plain.plan.local.learning_rate == 128.0


def test_one_record_moves_each_sum_by_at_most_one():
    draw = torch.Generator().manual_seed(0)
    shift = tuple((0.3 * torch.rand(4, generator=draw)).tolist())
    for method in (row_moments.RowMoments("record", 4), row_moments.RowMoments("record", 4, shift=shift)):
        for scale in (1e-6, 1.0, 1e6):
            x = scale * torch.randn(50, 4, generator=draw)
            sums = torch.stack([method._sum(x[: n + 1], (n + 1,)) for n in range(50)])
            assert float(sums.diff(dim=0).norm(dim=1).max()) <= 1 + 1e-9


def test_the_rate_follows_from_the_noise(table):
    """rate * deviation of a step * sqrt(steps) is the noise in a logit: 2 / sqrt(2 ln 2), whatever the settings."""
    for more in (
        {},
        {"rounds": 20},
        {"batch_rate": 0.2},
        {"local_steps": 3},
        {"channel": "secure-sum"},
        {"epsilon": 1.0},
    ):
        job = made(table, **more)
        steps = job.plan.rounds * job.plan.local.count(job.plan.smallest_client)
        shared = more.get("channel") == "secure-sum"
        deviation = job.plan.z * 0.5 * math.sqrt(1 if shared else 5) / (900 * more.get("batch_rate", 1.0))
        noise = job.plan.local.learning_rate * deviation * math.sqrt(steps)
        assert noise == pytest.approx(2 / math.sqrt(2 * math.log(2)), rel=1e-6) or job.plan.local.learning_rate == 128
    assert made(table, learning_rate=0.7).plan.local.learning_rate == 0.7
    assert made(table, model="mlp").plan.local.learning_rate == pytest.approx(made(table).plan.local.learning_rate / 3)


def test_a_method_that_clips_updates_gets_its_clip_from_the_noise(table):
    job = made(table, method="dp-fedavg", epsilon=100.0)
    assert job.method.clip != 1.0 and job.plan.local.learning_rate == pytest.approx(job.method.clip / 0.5)
    assert made(table, method="dp-fedavg", epsilon=100.0, clip=0.3).method.clip == 0.3


def test_regression_starts_in_the_middle_of_a_declared_range(tmp_path):
    draw = np.random.default_rng(0)
    a = draw.uniform(-1, 1, 400)
    rows = "\n".join(f"{v},{draw.normal()},{50 + 40 * v}" for v in a)
    (tmp_path / "t.csv").write_text("a,b,y\n" + rows + "\n")
    (tmp_path / "s.toml").write_text("[a]\nmin=-1\nmax=1\n[b]\nmin=-3\nmax=3\n[y]\nmin=0\nmax=100\n")
    more = {"dataset": "t.csv", "label_column": "y", "schema": str(tmp_path / "s.toml"), "public_share": 0.2}
    job = made(tmp_path, **more, epsilon=8.0)
    assert isinstance(job.model.module[-1], Midpoint) and job.method.clip == 0.25
    assert torch.allclose(job.model.module(torch.zeros(3, 2)), torch.tensor(0.5))
    metrics = run.execute(job, own_model=False).history[-1].metrics
    assert metrics["rmse"] < 0.15 < 0.23  # of always the middle


def test_noise_that_drowns_the_signal_is_said_with_what_would_help(table):
    quiet = made(table, epsilon=8.0).notes
    assert not any("noise" in note and "signal" in note for note in quiet)
    (loud,) = (note for note in made(table, epsilon=0.05, clients=50).notes if "signal" in note)
    assert "noise drowns the signal" in loud and "channel = secure-sum" in loud and "epsilon = " in loud
    assert made(table, epsilon=0.05, clients=50).rows is None  # statistics would be noise alone


def test_the_warning_about_noise_counts_clients_who_share_it_although_some_may_be_missing(table):
    def ratio(**keys):
        job = made(table, method="nbafl", clients=20, epsilon=1.0, **keys)
        (note,) = (note for note in job.notes if "signal" in note)
        return float(re.search(r"its length is ([\d.]+)", note)[1]), job.plan.split

    alone, summed, missing = ratio(), ratio(channel="secure-sum"), ratio(channel="secure-sum", allowed_dropouts=5)
    assert (alone[1], summed[1], missing[1]) == (1, 20, 14)
    assert missing[0] == pytest.approx(alone[0] / math.sqrt(14), rel=0.05)  # not `alone`, where each adds all of it
    assert summed[0] < missing[0] < ratio(channel="secure-sum", dropout="0.05")[0] == alone[0]


def test_a_model_that_predicts_one_class_says_so(table):
    arrays = dict(np.load(table / "t.npz"))
    np.savez(table / "one.npz", **arrays | {"y_train": np.zeros(900, np.int64)})
    result = trained(table, dataset="one.npz")
    assert any("predicts class" in note and "every test record" in note for note in result.notes)
    assert not any("every test record" in note for note in trained(table).notes)


def test_nothing_is_concluded_from_noisy_figures(table):
    job = made(table)
    result = run.execute(job, own_model=False)
    constant = [replace(result.history[-1], confusion=[[100.0, 0.0], [50.0, 0.0]])]
    assert list(verdict.remarks(job, constant)) and not list(verdict.remarks(replace(job, test=None), constant))


def test_a_killed_run_keeps_its_constants(table):
    whole = trained(table, name="whole", rounds=4, checkpoint_seconds=0.0)
    with killing("merged", 2), pytest.raises(Killed):
        trained(table, name="cut", rounds=4, checkpoint_seconds=0.0)
    faults.set_hook(None)
    folder = table / "runs" / "cut"
    resumed = run.execute(run.resume_spec(folder), own_model=False, at=folder)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_other_seeds_draw_other_noise(table):
    job = made(table)
    one, other = (statistics._mean(replace(job, rng=Stream.research(s)), job.rows.releases(6)) for s in (1, 2))
    assert not torch.equal(one, other)


def test_the_baseline_has_a_rate_that_suits_it(table):
    """The private rate is far too large without a clip: trials on the public records find a better one."""
    job = made(table, public_data=True, learning_rate=4000.0, rounds=10)
    twin = baseline.without_privacy(job)
    assert twin.plan.local.learning_rate < 4000.0 and any("short trials" in note for note in twin.notes)
    assert baseline._loss(twin, job.owner.brought) < baseline._loss(run.without_privacy(job), job.owner.brought)


def test_rows_are_for_tables_and_for_models_of_ours(tmp_path, table):
    with pytest.raises(SpecError, match="drop standardise"):
        made(table, normalise="rows", standardise=True)
    pictures = np.zeros((12, 8, 8), np.uint8)
    np.savez(tmp_path / "p.npz", x_train=pictures, y_train=np.arange(12) % 2, x_test=pictures, y_test=np.arange(12) % 2)
    with pytest.raises(SpecError, match="normalise = rows is for tables"):
        made(table, dataset="p.npz", normalise="rows", public_data=True, features="none")


def test_a_model_of_ones_own_is_refused_before_anything_is_charged(table):
    pairs = [(torch.randn(20, 6), torch.arange(20) % 2) for _ in range(3)]
    for model in (torch.nn.Linear(6, 2), torch.nn.Sequential(torch.nn.Linear(6, 2))):
        for scale in ("rows", "log-rows", "unit"):
            with pytest.raises(SpecError, match="with its own models"):
                sordino.train(model, pairs, epsilon=4.0, rounds=2, normalise=scale, out=str(table / "own"))
    assert not (table / "own").exists()


def test_the_scale_is_chosen_by_public_numbers_alone(tmp_path):
    """One user with many rows must not change the scale: with users protected, the number of records is private."""
    draw = np.random.default_rng(0)

    def scale(more):
        who = [*range(40), *[40] * more]
        rows = [f"{draw.normal()},{i % 2},u{u}" for i, u in enumerate(who)]
        (tmp_path / "t.csv").write_text("a,y,who\n" + "\n".join(rows) + "\n")
        keys = {"dataset": "t.csv", "data_dir": str(tmp_path), "label_column": "y", "user_column": "who"}
        keys |= {"unit": "user", "records_per_user": 1, "clients": 3, "epsilon": 1.0, "seed": 0, "partition": "iid"}
        return build.from_spec(spec.from_dict(keys)).spec.normalise

    assert scale(1) == scale(2000)
