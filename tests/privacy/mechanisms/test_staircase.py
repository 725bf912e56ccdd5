import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.stats import kstest

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs
from sordino.privacy.algebra import grouped
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.events import Pure
from sordino.privacy.mechanisms.staircase import (
    PerCoordinateStaircaseEvent,
    Staircase,
    StaircaseEvent,
    renyi_at,
)
from sordino.privacy.written import from_json, to_json
from support.staircase import best_gamma_variance, least_variance

ORDERS = np.array([1.001, 1.5, 2.0, 8.0, 64.0])


def draw(m: Staircase, n: int, bound: float = 1.0, seed: int = 3) -> np.ndarray:
    rows = Bounded(torch.zeros(n, 1, dtype=torch.float64), bound, m.norm)
    return m.add(rows, Stream.research(seed).rows(range(n))).numpy().ravel()


def pieces(m: Staircase, shift: float):
    """Lengths, and densities of the noise and of the shifted noise, on the pieces where both are constant (step 1)."""
    gamma, steps = m.shape, int(150 / m.epsilon)
    edges = np.concatenate([np.arange(steps) + gamma, np.arange(1, steps)])
    edges = np.concatenate([-edges, edges, [0.0]])
    cuts = np.unique(np.concatenate([edges, edges + shift]))
    cuts = cuts[np.append(True, np.diff(cuts) > 1e-12)]
    middle = (cuts[1:] + cuts[:-1]) / 2
    return np.diff(cuts), m.density(middle, 1.0), m.density(middle - shift, 1.0)


@pytest.mark.parametrize(
    ("epsilon", "gamma", "bound"), [(1.0, None, 1.0), (0.6, 0.5, 0.25), (3.0, 0.2, 2.0), (2.0, 1.0, 1.0)]
)
def test_noise_has_the_promised_law_and_no_other(epsilon, gamma, bound):
    m = Staircase(epsilon, gamma)
    x = draw(m, 60_000, bound)
    assert kstest(x, lambda t: m.cdf(t, bound)).pvalue > 1e-3
    assert kstest(x, lambda t: m.cdf(t, bound * 1.05)).pvalue < 1e-3
    assert kstest(x, lambda t: m.cdf(t, bound * 0.95)).pvalue < 1e-3
    assert abs(np.abs(x).mean() - m.mean_abs(bound)) < 4.5 * np.sqrt(m.variance(bound) / len(x))


@pytest.mark.parametrize("first", [-1, 1])
def test_a_geometric_that_starts_elsewhere_is_seen(first):
    m, rng = Staircase(1.0), np.random.default_rng(2)
    n, b, gamma = 20_000, np.exp(-1.0), m.shape
    upper = rng.random(n) < gamma / (gamma + b * (1 - gamma))
    rest = np.where(upper, gamma * rng.random(n), gamma + (1 - gamma) * rng.random(n))
    sign, k = rng.choice([-1, 1], n), rng.geometric(1 - b, n) - 1  # numpy's starts at 1
    assert kstest(sign * (k + rest), lambda t: m.cdf(t, 1.0)).pvalue > 1e-3
    assert kstest(sign * (k + first + rest), lambda t: m.cdf(t, 1.0)).pvalue < 1e-3


@pytest.mark.parametrize("epsilon", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.5, 1.0, None])
def test_density_cdf_and_moments_belong_together(epsilon, gamma):
    m = Staircase(epsilon, gamma)
    width, p, _ = pieces(m, 0.0)
    right = np.cumsum(width) - (int(150 / epsilon) - 1 + m.shape)
    left = right - width
    assert_allclose(width @ p, 1, rtol=1e-9)
    assert_allclose(np.cumsum(width * p), m.cdf(right, 1.0), atol=1e-9)
    assert_allclose(((right**3 - left**3) / 3) @ p, m.variance(1.0), rtol=1e-8)
    assert_allclose((np.abs(right * np.abs(right) - left * np.abs(left)) / 2) @ p, m.mean_abs(1.0), rtol=1e-8)
    assert_allclose(m.variance(3.0), 9 * m.variance(1.0))
    assert_allclose(m.density(0.7, 1.0), 3 * m.density(2.1, 3.0))


def test_golden_heights_and_moments():
    assert_allclose(Staircase(1.0, 0.3).density(0.0, 1.0), 0.566908395772, rtol=1e-9)
    assert_allclose(Staircase(2.0, 0.5).density(0.0, 1.0), 0.761594155956, rtol=1e-9)
    assert_allclose(Staircase(1.0, 0.4).mean_abs(1.0), 0.959774215547, rtol=1e-9)
    assert_allclose(Staircase(1.0, 0.4).variance(1.0), 1.91838685624, rtol=1e-9)
    golden = {
        1.0: (0.959517375667, 0.377540668798, 1.91810353124, 0.416737434929),
        2.0: (0.42545906412, 0.26894142137, 0.422732849047, 0.335130029679),
        5.0: (0.0826418349275, 0.0758581800212, 0.0297110241364, 0.144482174864),
    }
    for epsilon, (mean_abs, shape, variance, shape_v) in golden.items():
        m = Staircase(epsilon)
        assert_allclose([m.mean_abs(1.0), m.shape], [mean_abs, shape], rtol=1e-9)
        assert_allclose([least_variance(epsilon, 1.0), best_gamma_variance(epsilon)], [variance, shape_v], rtol=1e-9)
        assert_allclose(Staircase(epsilon, shape_v).variance(1.0), variance, rtol=1e-9)
        best = minimize_scalar(
            lambda g, e=epsilon: Staircase(e, float(g)).variance(1.0), bounds=(0, 1), method="bounded"
        )
        assert_allclose(best.fun, variance, rtol=1e-9)


@pytest.mark.parametrize(
    ("order", "epsilon", "gamma", "shift", "golden"),
    [
        (2, 1, 0.3, 1.0, 0.690920695312),
        (2, 1, 0.5, 1.0, 0.735325664056),
        (2, 1, 0.8, 1.0, 0.615389397259),
        (8, 0.5, 0.4, 1.0, 0.428042786496),
        (32, 0.1, 0.5, 1.0, 0.0792721922825),
        (1.5, 3, 0.2, 1.0, 2.81495565338),
        (2, 5, 0.498, 1.0, 4.99325844178),
        (64, 1, 0.3, 1.0, 0.993644931182),
        (2, 1, 0.3, 0.7, 0.614372485232),
        (2, 1, 0.3, 0.5, 0.510564443701),
        (4, 2, 0.8, 0.33, 1.46587507749),
    ],
)
def test_renyi_golden_values(order, epsilon, gamma, shift, golden):
    orders = np.array([float(order)])
    assert_allclose(renyi_at(orders, epsilon, gamma, shift)[0], golden, rtol=1e-9)
    if shift == 1:
        assert_allclose(StaircaseEvent(epsilon, gamma).renyi(orders)[0], golden, rtol=1e-9)


@pytest.mark.parametrize(("epsilon", "gamma"), [(0.5, 0.1), (1.0, 0.5), (2.0, 0.9), (4.0, 0.0)])
@pytest.mark.parametrize("shift", [0.0, 0.15, 0.6, 1.0])
def test_renyi_and_delta_are_those_of_the_densities(epsilon, gamma, shift):
    width, p, q = pieces(Staircase(epsilon, gamma), shift)
    curve = [np.log(width @ np.exp(a * np.log(p) + (1 - a) * np.log(q))) / (a - 1) for a in ORDERS[1:]]
    assert_allclose(renyi_at(ORDERS[1:], epsilon, gamma, shift), curve, rtol=1e-8, atol=1e-9)
    pair = StaircaseEvent(epsilon, gamma).pair()
    for level in np.array([-0.5, 0.0, 0.3, 0.99, 1.2]) * epsilon:
        true = width @ np.maximum(p - np.exp(level) * q, 0)
        assert true <= pairs.delta(pair, level) + 1e-12  # one whole step is the worst
        if shift == 1:
            assert_allclose(pairs.delta(pair, level), true, atol=1e-10)


def test_pair_golden_values():
    pair = StaircaseEvent(1.0, 0.3).pair()
    assert_allclose(pair.p[-1], 0.670072518732, rtol=1e-9)
    assert_allclose(pairs.delta(pair, 0.5), 0.26365299189, rtol=1e-9)
    assert_allclose([pair.p.sum(), pair.q.sum()], 1, rtol=1e-15)


def test_renyi_neither_overflows_nor_loses_its_digits():
    assert_allclose(StaircaseEvent(500.0, 0.5).renyi(np.array([1.5, 1e6])), 500, rtol=1e-6)
    e = 1e-6
    assert_allclose(StaircaseEvent(e, 0.5).renyi(np.array([2.0])), e * e, rtol=1e-5)  # a e^2/2 to first order


@pytest.mark.parametrize(("epsilon", "gamma"), [(1.0, None), (5.0, 0.498)])
def test_audit_by_densities(epsilon, gamma):
    m = Staircase(epsilon, gamma)
    bound = 0.5
    claim, x = m.event().pure(), np.linspace(-6, 6, 24_001) + 1e-5

    def worst(density, shift):
        return np.abs(np.log(density(x)) - np.log(density(x - shift))).max()

    row = float(clip_rows(torch.tensor([[7.3]], dtype=torch.float64), bound, 1).value)
    for shift in (0.01, 0.2, row):
        assert worst(lambda t: m.density(t, bound), shift) <= claim * (1 + 1e-9)
    assert_allclose(worst(lambda t: m.density(t, bound), row), claim)
    assert worst(lambda t: m.density(t, bound), 7.3) > 3 * claim  # clip not applied
    assert worst(lambda t: m.density(t, bound / 2), row) > 1.9 * claim  # half the noise

    def off_by_one(t):  # index k - 1: for k = 0 the step from -1 to 0 folds back
        size = np.abs(t) / bound
        return m.density((1 - size) * bound, bound) * (size < 1) + np.exp(-epsilon) * m.density(t, bound)

    assert_allclose(np.trapezoid(off_by_one(x), x), 1, rtol=1e-2)
    assert max(worst(off_by_one, share * row) for share in (0.5, 0.75, 0.99)) > 2.9 * claim


def test_vectors_are_refused_or_pay_the_true_price():
    rows = Bounded(torch.zeros(2, 3), 1.0, 1)
    rng = Stream.research(1).rows([0, 1])
    with pytest.raises(SpecError, match="staircase-ball"):
        Staircase(1.0).add(rows, rng)
    with pytest.raises(SpecError, match="staircase-ball"):
        Staircase(1.0).event(dim=3)
    m = Staircase(1.0, per_coordinate=True)
    for dim in (0, True, 10**400):
        with pytest.raises(SpecError, match="dim"):
            m.event(dim)
    with pytest.raises(SpecError, match="dim"):
        m.event()  # one coordinate's price would be too little
    assert m.add(rows, rng).shape == (2, 3)
    assert m.event(1) == StaircaseEvent(1.0, m.shape)
    event = m.event(3)
    assert event == PerCoordinateStaircaseEvent(1.0, m.shape, 3, 1)
    assert event.pure() == 3 and event.pair() is None and event.rho() == 1.5
    assert (event.renyi(ORDERS) <= np.minimum(3, 1.5 * ORDERS)).all()


def test_per_coordinate_golden_values():
    order = np.array([2.0])
    assert_allclose(PerCoordinateStaircaseEvent(2.0, 0.5, 26_010, 1).renyi(order)[0], 5.52380478894, rtol=1e-9)
    assert_allclose(PerCoordinateStaircaseEvent(0.5, 0.5, 26_010, 2).renyi(order)[0], 41.1335088983, rtol=1e-9)


@pytest.mark.parametrize(("norm", "power"), [(1, 1), (2, 2)])
def test_no_split_of_the_shift_is_worse_than_the_even_one(norm, power):
    event, rng = PerCoordinateStaircaseEvent(1.5, 0.3, 4, norm), np.random.default_rng(0)
    for _ in range(50):
        raw = rng.exponential(size=4) ** rng.choice([0.1, 1, 5])
        split = raw / (raw**power).sum() ** (1 / power)
        total = sum(renyi_at(ORDERS, 1.5, 0.3, float(min(u, 1.0))) for u in split)
        assert (total <= event.renyi(ORDERS) * (1 + 1e-9)).all()


def test_events_travel_and_group():
    for event in (Staircase(1.3).event(), Staircase(1.3, norm=2, per_coordinate=True).event(5)):
        assert from_json(to_json(event)) == event
    assert grouped(StaircaseEvent(1.3, 0.4), 2) == Pure(2.6)


def test_rows_are_keyed_by_client():
    zero, rng, m = torch.zeros(3, 1), Stream.research(1), Staircase(1.0)
    noisy = m.add(Bounded(zero, 1.0, 1), rng.rows([1, 2, 3]))
    assert len(set(noisy.ravel().tolist())) == 3
    assert torch.equal(noisy[1], m.add(Bounded(zero[:1], 1.0, 1), rng.rows([2]))[0])


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, 1e-9, 501.0])
def test_bad_epsilons_are_refused(value):
    for make in (Staircase, lambda e: StaircaseEvent(e, 0.5)):
        with pytest.raises(SpecError, match="epsilon"):
            make(value)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "0.5"])
def test_bad_fields_are_refused(value):
    with pytest.raises(SpecError, match="gamma"):
        Staircase(1.0, value)
    with pytest.raises(SpecError, match="norm"):
        Staircase(1.0, norm=value)
    with pytest.raises(SpecError, match=r"shift|number|negative"):
        renyi_at(ORDERS, 1.0, 0.5, value)
    with pytest.raises(SpecError, match="per_coordinate"):
        Staircase(1.0, per_coordinate=1)
    with pytest.raises(SpecError, match="L1"):
        Staircase(1.0).add(Bounded(torch.zeros(1, 1), 1.0, 2), Stream.research(1).rows([0]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_noise_has_the_same_law():
    mechanism = Staircase(1.3, 0.4, per_coordinate=True)
    rows = Bounded(torch.zeros(4, 50_000, device="cuda"), 0.7, norm=1)
    found = mechanism.add(rows, Stream.research(8).rows(range(4))).cpu().double().numpy()
    for row in found:
        assert kstest(row, lambda t: mechanism.cdf(t, 0.7)).pvalue > 1e-3
        assert kstest(row, lambda t: mechanism.cdf(t, 0.735)).pvalue < 1e-3
