"""Rotated rows as whole numbers with shares of noise: bounds, laws, prices and the values of the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest, norm

from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.privacy.accountants import gdp, rdp
from sordino.privacy.algebra import of_replaced_units, scaled
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import GaussianEvent
from sordino.privacy.mechanisms.binomial import BinomialEvent
from sordino.privacy.mechanisms.poisson_binomial import PoissonBinomial, PoissonBinomialEvent
from sordino.privacy.mechanisms.skellam import Skellam
from sordino.privacy.quantise import bounds
from sordino.privacy.release import Use
from sordino.privacy.rotation import hadamard, padded, restored, rotated, signs
from sordino.privacy.shared_integers import Coins, LatticeNoise, deviation, lattice_noise, wrapping
from sordino.privacy.tightest import epsilon

RNG = Stream.research(23)
BOTH = ("skellam", "discrete-gaussian")


def clients(count: int) -> RowStream:
    return RNG.rows(range(count))


# --- the rotation


def test_a_rotation_is_undone_and_keeps_lengths_and_angles():
    rows = torch.from_numpy(np.random.default_rng(1).normal(size=(3, 37)))
    turned = rotated(rows, 5)
    assert turned.shape == (3, 64) and padded(64) == 64 and padded(65) == 128 and padded(1) == 1
    assert torch.allclose(turned @ turned.T, rows @ rows.T, rtol=1e-12)
    assert torch.allclose(restored(turned, 5, 37), rows, rtol=1e-12)
    assert not torch.allclose(restored(turned, 6, 37), rows)  # signs of another round
    naive = torch.tensor([[(-1.0) ** bin(i & j).count("1") for j in range(8)] for i in range(8)]).double() / 8**0.5
    assert torch.allclose(hadamard(torch.eye(8).double()), naive, atol=1e-15)


def test_signs_are_public_fair_and_new_in_every_round():
    drawn = torch.stack([signs(4096, round) for round in range(8)])
    assert set(drawn.unique().tolist()) == {-1.0, 1.0} and torch.equal(drawn[3], signs(4000, 3))
    assert float(drawn.mean(dim=1).abs().max()) < 4 / 64
    products = drawn @ drawn.T / 4096 - torch.eye(8)
    assert float(products.abs().max()) < 4 / 64


def test_a_single_long_coordinate_is_spread_over_all():
    row = torch.zeros(1, 8192)
    row[0, 17] = 1.0
    assert float(rotated(row, 0).abs().max()) == pytest.approx(8192**-0.5)


# --- noise on a lattice


@pytest.mark.parametrize("noise", BOTH)
def test_the_sum_of_the_shares_is_the_noise_that_is_priced(noise):
    made = LatticeNoise(1.5, 0.125, bounds(1.0, 2, 2048, 0.125), noise)
    zeros = Bounded(torch.zeros(12, 2000), 1.0)
    for sharing, close in ((12, 0.03), (4, 0.02)):
        rows = made.apply(zeros, clients(12), Use(split=sharing))
        assert rows.dtype == torch.int64 and rows.shape == (12, 2048)
        right = 1.5 * math.sqrt(made.limits.l2_squared / sharing)
        assert float(rows.double().std()) == pytest.approx(right, rel=close)
        assert float(rows[:sharing].sum(dim=0).double().std()) * 0.125 == pytest.approx(made.std(1.0), rel=0.06)
    together = made.apply(zeros, clients(12), Use(split=12)).sum(dim=0).double().numpy() * 0.125
    assert (
        kstest(together + np.random.default_rng(0).uniform(-1, 1, 2048) / 16, norm(0, made.std(1.0)).cdf).pvalue > 1e-3
    )
    assert kstest(together, norm(0, 1.15 * made.std(1.0)).cdf).pvalue < 1e-3


@pytest.mark.parametrize("noise", BOTH)
def test_a_mean_is_found_again_without_bias(noise):
    rows = clip_rows(torch.from_numpy(np.random.default_rng(3).normal(size=(40, 200))), 1.0)
    made = lattice_noise(noise, 0.5, 1.0, 200, 20, 40, 40)
    total = made.apply(rows, clients(40), Use(7, 40)).sum(dim=0, keepdim=True)
    found = made.floats(total, 7, 200) - rows.value.sum(dim=0)
    assert kstest(found[0].numpy(), norm(0, made.std(1.0)).cdf).pvalue > 1e-3
    assert float(made.floats(total, 8, 200).norm()) > 0 and not torch.allclose(made.floats(total, 8, 200), found)


def test_a_row_past_its_bound_does_not_leave():
    made = lattice_noise("skellam", 1.0, 1.0, 64, 20, 4, 4)
    with pytest.raises(SpecError, match="not inside the bound"):
        made.apply(Bounded(torch.full((1, 64), 0.2), 1.0), clients(1), Use())
    with pytest.raises(SpecError, match="noise multipliers of their own"):
        made.apply(Bounded(torch.zeros(1, 64), 1.0), clients(1), Use(multiplier=torch.ones(1, 1)))


def test_rows_depend_on_their_client_alone(monkeypatch):
    made, rows = lattice_noise("skellam", 1.0, 1.0, 50, 20, 4, 4), clip_rows(torch.ones(6, 50), 1.0)
    all_of = made.apply(rows, clients(6), Use(2, 4))
    monkeypatch.setattr("sordino.privacy.shared_integers.CHUNK", 128)  # two rows at a time
    assert torch.equal(all_of, made.apply(rows, clients(6), Use(2, 4)))
    some = made.apply(Bounded(rows.value[:2], 1.0), RNG.rows([4, 1]), Use(2, 4))
    assert torch.equal(some, all_of[[4, 1]])


# --- the step of the lattice


@pytest.mark.parametrize("noise", BOTH)
@pytest.mark.parametrize(("z", "bits"), [(0.3, 14), (3.0, 14), (0.3, 20), (300.0, 20), (3.0, 32), (3000.0, 32)])
def test_sums_fit_into_the_modulus_and_the_lattice_is_no_coarser_than_it_must_be(noise, z, bits):
    made = lattice_noise(noise, z, 1.0, 7850, bits, 200, 250)
    fits = 8 * deviation(made, 1.0, 200, 250) <= made.granularity * 2 ** (bits - 1)
    assert fits and math.frexp(made.granularity)[0] == 0.5
    finer = LatticeNoise(z, made.granularity / 2, bounds(1.0, 2, 8192, made.granularity / 2), noise)
    tight = 8 * deviation(finer, 1.0, 200, 250) > finer.granularity * 2 ** (bits - 1)
    wide = finer.std(1.0) / 200**0.5 > 2**15 * finer.granularity
    assert tight or wide or finer.granularity < 1 / (16 * 8192**0.5)
    assert wrapping(made, 1.0, bits, 200, 250) < 1.3e-15


def test_bits_that_hold_no_sum_are_refused():
    with pytest.raises(SpecError, match="do not fit into 4 bits: use more bits"):
        lattice_noise("skellam", 3.0, 1.0, 7850, 4, 200, 250)


# --- the values of FAMILIES: c = 1, d = 8192, z = 1, n = 100


def on(granularity: float, noise: str) -> LatticeNoise:
    return LatticeNoise(1.0, granularity, bounds(1.0, 2, 8192, granularity), noise)


@pytest.mark.parametrize(("granularity", "right"), [(0.001, 1.001545433), (0.01, 1.10423072), (0.2, 9.215757883)])
def test_golden_bounds_after_rounding(granularity, right):
    assert granularity * on(granularity, "skellam").limits.l2 == pytest.approx(right, rel=1e-4)


def test_golden_distributed_discrete_gaussian():
    event = on(0.01, "discrete-gaussian").event(100)
    assert event.sigma == pytest.approx(11.0423072, rel=1e-4) and event.tau() == 0
    assert event.rho() == pytest.approx(0.5, rel=1e-9)
    assert on(0.2, "discrete-gaussian").event(100).sigma == pytest.approx(4.607878942, rel=2e-4)
    made = on(0.01, "discrete-gaussian")
    assert math.ceil(math.log2(2 * 4 * deviation(made, 1.0, 100, 100) / 0.01)) == 11
    assert wrapping(made, 1.0, 11, 100, 100) == pytest.approx(5.673576393e-11, rel=1e-3)


def test_golden_skellam():
    event = on(0.01, "skellam").event(100)
    assert float(event.renyi(np.array([8.0]))[0]) == pytest.approx(4.000408381, rel=1e-6)
    orders = np.arange(2.0, 512.0)
    conversion = event.renyi(orders) + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1)
    assert float(conversion.min()) == pytest.approx(4.753013699, rel=1e-6)
    assert epsilon(event, 1e-5) == pytest.approx(4.753013699, rel=1e-6)
    assert epsilon(GaussianEvent(1.0), 1e-5) == pytest.approx(4.3772, rel=1e-4)
    exact = Skellam(1.0).event(bounds(1.0, 2, 8192, 0.01), 100)  # with the table of the sampler
    assert event.mu == pytest.approx(exact.mu, rel=1e-12) and event.mu <= exact.mu and event.l1 == exact.l1
    assert exact.distance <= event.distance < 1e-20


@pytest.mark.parametrize(
    ("clients", "theta", "order", "right"),
    [(10, 0.25, 2, 0.6156000007), (10, 0.25, 8, 2.782954969), (40, 0.25, 2, 0.1384572163), (10, 0.1, 2, 0.06775093663)],
)
def test_golden_poisson_binomial(clients, theta, order, right):
    """At most as much above the value as a group of cases costs; and d coordinates cost d times as much."""
    one, many = (PoissonBinomialEvent(4, theta, clients, d).renyi(np.array([float(order)]))[0] for d in (1, 7))
    assert right * (1 - 1e-6) <= one <= 1.04 * right
    assert many == pytest.approx(7 * one, rel=1e-9)


def test_golden_poisson_binomial_variance_and_limit():
    assert PoissonBinomial(16, 0.25).variance(100, 1.0) == pytest.approx(0.0025)
    limit = 2 * (2 * 0.25 * 4) ** 2 / (2 * 40 * 4 * (0.25 - 0.25**2))
    assert limit == pytest.approx(0.1333333333) and limit < 0.1384572163


def test_golden_binomial():
    event = BinomialEvent(2**20, 1000, 1.0, 1.0, 1, 1e-9)
    assert event.published() == pytest.approx(0.01453481326, rel=1e-9) and event.epsilon() <= event.published()


def test_golden_missing_share():
    """No shift at all: a sum without one of a hundred shares has a variance that a chi-square test can see."""
    from scipy.stats import chi2

    for dim, right in ((7850, 0.0963258357), (26010, 0.2971077808)):
        with_it, ratio = chi2(dim), 100 / 99
        cut = (0.5 + 0.5 * dim * math.log(ratio)) * 2 / (1 - 1 / ratio)  # where the likelihood ratio is e^0.5
        found = with_it.sf(cut / ratio) - math.exp(0.5) * with_it.sf(cut)
        assert found == pytest.approx(right, rel=1e-6)


# --- coins


def test_coins_have_the_price_of_the_gaussian_that_their_multiplier_names():
    made = Coins(3.0, 16, 0.1, 4096)
    event = made.event(500)
    assert isinstance(event, PoissonBinomialEvent) and of_replaced_units(event)
    orders = np.array([2.0, 8.0])
    limit = orders / (2 * 9.0)
    assert (event.renyi(orders) >= limit).all() and event.renyi(orders) == pytest.approx(limit, rel=0.05)
    assert 0 < made.mechanism(1).theta < made.mechanism(500).theta < 0.5


def test_coins_add_up_to_the_sum_whoever_is_missing():
    made = Coins(0.5, 8, 4 / 256**0.5, 256)
    rows = clip_rows(torch.from_numpy(np.random.default_rng(5).normal(size=(300, 250))) + 0.5, 1.0)
    sent = made.apply(rows, clients(300), Use(3, 200))
    assert int(sent.abs().max()) <= 8 and set((sent % 2).unique().tolist()) == {0}
    for here in (slice(0, 300), slice(50, 290)):
        found = made.floats(sent[here].sum(dim=0, keepdim=True), 3, 250, 200)[0] - rows.value[here].sum(dim=0)
        count = here.stop - here.start
        std = count * math.sqrt(made.mechanism(200).variance(count, made.peak))
        assert kstest(found.numpy(), norm(0, std).cdf).pvalue > 1e-3
        assert float(found.std()) == pytest.approx(std, rel=0.2)  # of 250 numbers
    heads = (made.apply(Bounded(torch.zeros(1, 256), 1.0), clients(1), Use(3, 200)) + 8) // 2
    counts = np.bincount(heads[0].numpy(), minlength=9)
    fair = 256 * np.array([math.comb(8, k) / 256 for k in range(9)])
    assert (
        chisquare(
            [counts[:3].sum(), *counts[3:6], counts[6:].sum()], [fair[:3].sum(), *fair[3:6], fair[6:].sum()]
        ).pvalue
        > 1e-3
    )


def test_coordinates_past_the_peak_are_cut():
    made = Coins(0.01, 4, 0.05, 64)
    sent = made.apply(Bounded(torch.cat([torch.ones(1, 1), torch.zeros(1, 63)], dim=1), 1.0), clients(1), Use(0, 4))
    theta = made.mechanism(4).theta
    assert theta > 0.49 and int(sent.abs().sum()) >= 0.95 * 4 * 64  # every coordinate, 0.125, is at the peak


# --- viewers that know a part of the noise


@pytest.mark.parametrize("made", [on(0.01, "skellam"), on(0.01, "discrete-gaussian"), Coins(1.0, 4, 0.1, 64)], ids=str)
def test_who_knows_one_share_of_ten_meets_nine(made):
    known, all_of = scaled(made.event(10), math.sqrt(9 / 10)), made.event(10)
    orders = np.array([2.0, 4.0])
    assert known.renyi(orders) == pytest.approx(all_of.renyi(orders) * 10 / 9, rel=0.03)
    assert (known.renyi(orders) > all_of.renyi(orders)).all()
    if not isinstance(made, Coins):
        assert rdp.epsilon(known, 1e-5) > gdp.epsilon(GaussianEvent(math.sqrt(0.9)), 1e-5)
