import math

import numpy as np
import pytest
import torch

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs
from sordino.privacy.mechanisms.discrete_gaussian import (
    DiscreteGaussian,
    DiscreteGaussianEvent,
    DistributedDiscreteGaussianEvent,
    probabilities,
)
from sordino.privacy.quantise import Bounds, Integers
from sordino.privacy.written import from_json, to_json
from support.integer_laws import chi_square, shifted

ORDERS = np.array([1.01, 1.5, 2.0, 3.3, 8.0, 32.0, 100.0])
THREE = Bounds(dim=500, l1=9, l2_squared=9, linf=3)


def renyi(log: np.ndarray, by: int, orders: np.ndarray = ORDERS) -> np.ndarray:
    """Of a law, given by its logarithms, moved by an integer."""
    p, q, a = log[: len(log) - by], log[by:], orders[:, None]
    return np.logaddexp.reduce(a * p + (1 - a) * q, axis=1) / (orders - 1)


def law(sigma: float, far: int) -> np.ndarray:
    k = np.arange(-far, far + 1)
    return -k * k / (2 * sigma**2) - np.log(np.exp(-k * k / (2 * sigma**2)).sum())


def p_value(x: np.ndarray, sigma: float) -> float:
    return chi_square(x, *probabilities(sigma))


@pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])
def test_noise_has_the_promised_scale_and_no_other(rng):
    rows = Integers(torch.full((200, 500), 0), THREE)
    rows.value[:, 0] = 3
    noise = (DiscreteGaussian(1.3).add(rows, rng.rows(range(200))) - rows.value).flatten().numpy()
    assert p_value(noise, 1.3 * 3) > 1e-3  # follows the bound
    for wrong in (1.05, 1 / 1.05, 0.5):
        assert p_value(noise, 1.3 * 3 * wrong) < 1e-3
    assert p_value(noise + 1, 1.3 * 3) < 1e-3


def test_every_row_has_its_own_noise_keyed_by_its_client():
    zero, rng = Integers(torch.zeros(3, 500, dtype=torch.int64), THREE), Stream.research(1)
    noisy = DiscreteGaussian(2.0).add(zero, rng.rows([1, 2, 3]))
    assert noisy.dtype == torch.int64 and len({row.numpy().tobytes() for row in noisy}) == 3
    assert torch.equal(noisy[1], DiscreteGaussian(2.0).add(Integers(zero.value[:1], THREE), rng.rows([2]))[0])
    assert not zero.value.any()


def test_golden_values():
    one = Bounds(1, 1, 1, 1)
    assert DiscreteGaussian(0.5).variance(one) == pytest.approx(0.215012675088, rel=1e-11)
    k, mass = probabilities(1.0)
    assert 1 / mass[k == 0][0] == pytest.approx(2.50662828804, rel=1e-11)
    assert DiscreteGaussian(3.0).variance(THREE) == pytest.approx(81.0, rel=1e-9)
    assert DiscreteGaussian(2.0).event(one).rho() == 0.125


@pytest.mark.parametrize(("z", "bound"), [(0.4, 2), (1.0, 3), (5.0, 7)])
def test_rho_bounds_the_exact_pair_and_only_just(z, bound):
    """One coordinate moved by the whole bound: where order times shift is whole the curve is met exactly."""
    log, claimed = law(z * bound, 2000), DiscreteGaussianEvent(z).renyi(ORDERS)
    assert (renyi(log, bound) <= claimed * (1 + 1e-9)).all()
    assert renyi(log, bound)[[2, 4, 5, 6]] == pytest.approx(claimed[[2, 4, 5, 6]], rel=1e-9)
    assert (renyi(law(z * bound / 2, 2000), bound) > claimed).all()  # half the noise is caught
    assert (renyi(log, bound + 1) > claimed).all()  # so is a shift that is one too far


@pytest.mark.parametrize("z", [0.7, 3.0])
def test_the_table_itself_is_no_easier_to_see_than_the_event_says(z):
    """An audit with the probabilities that the sampler really has."""
    bounds = Bounds(1, 4, 16, 4)
    mechanism = DiscreteGaussian(z)
    mass = np.array([float(m) for m in mechanism.table(bounds).probabilities()[1]])
    event, pair = mechanism.event(bounds), pairs.Atoms.of(*shifted(mass, 4))
    for delta in (1e-3, 1e-7):
        grid = np.linspace(1.01, 200, 4000)
        cost = event.renyi(grid) + np.log1p(-1 / grid) - (np.log(delta) + np.log(grid)) / (grid - 1)
        epsilon = float(cost.min())  # Balle et al. (2020), Theorem 21
        assert pairs.delta(pair, epsilon) <= delta
        assert pairs.delta(pair, epsilon / 2) > delta  # and a claim of half as much would be false


def convolved(sigma: float, clients: int) -> np.ndarray:
    _, one = probabilities(sigma)
    one = one[one > 1e-30]
    total = one
    for _ in range(clients - 1):
        total = np.convolve(total, one)
    return np.log(total)


@pytest.mark.parametrize(("sigma", "clients", "bound"), [(0.5, 4, 1), (0.6, 8, 2), (1.0, 5, 3)])
def test_a_sum_of_noises_is_priced_above_its_exact_divergence(sigma, clients, bound):
    event = DistributedDiscreteGaussianEvent(sigma, clients, 1, bound, bound)
    orders = ORDERS[:5]  # higher ones look at probabilities that floats do not have
    claimed = event.renyi(orders)
    assert (renyi(convolved(sigma, clients), bound, orders) <= claimed * (1 + 1e-9)).all()
    assert (claimed <= event.rho() * orders * (1 + 1e-12)).all()
    if event.tau() < 1e-2:
        assert (
            renyi(convolved(sigma, clients // 2), bound, orders) > claimed
        ).all()  # clients that stay away are caught


@pytest.mark.parametrize(("sigma", "dim", "least"), [(0.5, 10, 0), (0.8, 1000, 1), (0.8, 10**6, 1)])
def test_the_price_of_a_sum_is_the_formula_of_the_paper(sigma, dim, least):
    event = DistributedDiscreteGaussianEvent(sigma, 3, dim, 4.0, 2.0)
    tau = 10 * (math.exp(-2 * math.pi**2 * sigma**2 / 2) + math.exp(-2 * math.pi**2 * sigma**2 * 2 / 3))
    assert event.tau() == pytest.approx(tau, rel=1e-12)
    std = math.sqrt(3) * sigma
    for a in (1.5, 4.0):
        three = (
            a * 4 / (2 * std**2) + tau * dim,
            a / 2 * (4 / std**2 + 2 * 4 / std * tau + tau**2 * dim),
            a / 2 * (2 / std + tau * math.sqrt(dim)) ** 2,
        )
        assert event.renyi(np.array([a]))[0] == pytest.approx(min(three), rel=1e-12)
        assert min(three) == three[least]
    assert DistributedDiscreteGaussianEvent(2.0, 1, 5, 3.0, 2.0).rho() == DiscreteGaussianEvent(1.0).rho()


def test_events_say_what_was_added_and_travel():
    event = DiscreteGaussian(1.3).event(THREE)
    assert (
        event.noise_multiplier == 1.3
        and 0 < event.distance == 500 * DiscreteGaussian(1.3).table(THREE).distance < 1e-30
    )
    assert event.grouped(2).rho() == pytest.approx(4 * event.rho())
    total = DiscreteGaussian(1.3).event_of_sum(THREE, 10)
    assert total.sigma == pytest.approx(3.9) and total.distance == pytest.approx(10 * event.distance)
    assert total.rho() == pytest.approx(event.rho() / 10, rel=1e-9)
    for one in (event, total):
        assert from_json(to_json(one)) == one
    assert total.grouped(3).l2 == 3 * total.l2 and total.grouped(3).rho() > 8.9 * total.rho()


@pytest.mark.parametrize("z", [0, -1, float("nan"), float("inf"), True, "1"])
def test_no_noise_is_not_a_mechanism(z):
    with pytest.raises(SpecError, match="noise_multiplier"):
        DiscreteGaussian(z)
    with pytest.raises(SpecError):
        DiscreteGaussianEvent(z)


def test_what_is_not_understood_is_refused():
    with pytest.raises(SpecError, match=r"sigma = 0.5"):
        DistributedDiscreteGaussianEvent(0.4, 2, 1, 1, 1)
    with pytest.raises(SpecError, match="coarser lattice"):
        DiscreteGaussian(1e5).event(THREE)
    assert DiscreteGaussianEvent(1e-200).rho() == math.inf  # no noise to speak of, no exception
