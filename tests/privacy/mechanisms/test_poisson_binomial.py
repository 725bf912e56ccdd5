import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.mechanisms import poisson_binomial
from sordino.privacy.mechanisms.poisson_binomial import PoissonBinomial, PoissonBinomialEvent
from sordino.privacy.written import from_json, to_json

ORDERS = np.array([1.05, 1.5, 2.0, 4.5, 16.0])


def rows(x: float, n: int = 200, dim: int = 500) -> Bounded:
    return Bounded(torch.full((n, dim), x), 2.0, math.inf)


def p_value(seen: np.ndarray, m: int, p: float) -> float:
    expected = len(seen) * binom.pmf(np.arange(m + 1), m, p)
    counts = np.bincount(seen, minlength=m + 1)
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), m))


@pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])
@pytest.mark.parametrize(("x", "p"), [(0.0, 0.5), (1.0, 0.625), (-2.0, 0.25), (2.0, 0.75)])
def test_messages_are_binomial_with_the_promised_chance_and_no_other(rng, x, p):
    sent = PoissonBinomial(levels=7, theta=0.25).add(rows(x), rng.rows(range(200)))
    assert sent.dtype == torch.int64
    seen = sent.flatten().numpy()
    assert p_value(seen, 7, p) > 1e-3
    assert p_value(seen, 7, p * 1.05) < 1e-3 and p_value(seen, 7, p / 1.05) < 1e-3
    assert p_value(7 - seen, 7, p) < 1e-3 or x == 0.0


def test_the_mean_is_unbiased_and_has_the_promised_variance():
    mechanism, n = PoissonBinomial(levels=5, theta=0.3), 50
    x = torch.linspace(-2, 2, n)[:, None].expand(n, 40_000).contiguous()
    got = mechanism.mean(mechanism.add(Bounded(x, 2.0, math.inf), Stream.research(3).rows(range(n))).sum(0), n, 2.0)
    inner = float(np.mean([mechanism.variance(1, 2.0, v) for v in x[:, 0].tolist()])) / n
    assert abs(float(got.mean())) < 5 * math.sqrt(inner / 40_000)
    assert float(got.var()) == pytest.approx(inner, rel=0.04) and inner < mechanism.variance(n, 2.0)
    one = mechanism.mean(mechanism.add(rows(1.3), Stream.research(4).rows(range(200))).sum(0), 200, 2.0)
    assert abs(float(one.mean()) - 1.3) < 5 * math.sqrt(mechanism.variance(200, 2.0, 1.3) / 500)
    assert abs(float(one.mean()) - 1.3 * 1.05) > 5 * math.sqrt(mechanism.variance(200, 2.0, 1.3) / 500)


def renyi(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    a = ORDERS[:, None]
    return np.logaddexp.reduce(a * np.log(p) + (1 - a) * np.log(q), axis=1) / (ORDERS - 1)


def law(chances: list[float], m: int) -> np.ndarray:
    total = np.ones(1)
    for p in chances:
        total = np.convolve(total, binom.pmf(np.arange(m + 1), m, p))
    return total


@pytest.mark.parametrize(("n", "m", "theta"), [(1, 3, 0.2), (3, 1, 0.25), (4, 3, 0.1), (5, 2, 0.4)])
def test_no_choice_of_everyones_data_exceeds_the_price_and_one_attains_it(n, m, theta):
    event = PoissonBinomialEvent(m, theta, n, 1)
    claimed, rng = event.renyi(ORDERS), np.random.default_rng(0)

    def ends(n: int, theta: float) -> np.ndarray:
        """The others at the ends, the client from end to end."""
        found = np.zeros(len(ORDERS))
        for high in range(n):
            others = [0.5 + theta] * high + [0.5 - theta] * (n - 1 - high)
            found = np.maximum(found, renyi(law([*others, 0.5 + theta], m), law([*others, 0.5 - theta], m)))
        return found

    worst = ends(n, theta)
    assert (worst <= claimed * (1 + 1e-9)).all() and (worst >= 0.999 * claimed).all()  # attained
    for _ in range(60):  # anything in between
        others = (0.5 + theta * rng.uniform(-1, 1, n - 1)).tolist()
        a, b = 0.5 + theta * rng.uniform(-1, 1, 2)
        assert (renyi(law([*others, a], m), law([*others, b], m)) <= claimed).all()
    assert (ends(n, 1.05 * theta) > claimed).all()  # coins that lean too far are caught
    assert n == 1 or (ends(n - 1, theta) > claimed).all()  # so is a client who stayed away


def test_groups_cost_little_and_never_too_little(monkeypatch):
    """300 coins: every case by itself against 32 groups."""
    event = PoissonBinomialEvent(3, 0.2, 101, 1)
    grouped = event.renyi(ORDERS)
    poisson_binomial._worst.cache_clear()
    poisson_binomial._laws.cache_clear()
    monkeypatch.setattr(poisson_binomial, "GROUPS", 10_000)
    single = event.renyi(ORDERS)
    poisson_binomial._worst.cache_clear()
    poisson_binomial._laws.cache_clear()
    assert (single <= grouped).all() and (grouped <= 1.05 * single).all()
    gaussian = ORDERS * (2 * 0.2 * 3) ** 2 / (2 * 303 * (0.25 - 0.04))
    assert single[:4] == pytest.approx(gaussian[:4], rel=0.1)


def test_windows_leave_nothing_out(monkeypatch):
    """A window of 38 deviations against none at all."""
    event = PoissonBinomialEvent(2, 0.1, 400, 1)
    windowed = event.renyi(ORDERS)
    for cache in (poisson_binomial._worst, poisson_binomial._laws):
        cache.cache_clear()
    monkeypatch.setattr(poisson_binomial, "_window", lambda n, p: binom.pmf(np.arange(n + 1), n, p))
    assert windowed == pytest.approx(event.renyi(ORDERS), rel=1e-7)
    for cache in (poisson_binomial._worst, poisson_binomial._laws):
        cache.cache_clear()


def test_more_coins_than_are_priced_cost_no_less_than_nothing(monkeypatch):
    event = PoissonBinomialEvent(2, 0.1, 4000, 1)
    full = event.renyi(ORDERS)
    monkeypatch.setattr(poisson_binomial, "MOST_COINS", 1000)
    assert (event.renyi(ORDERS) > full).all()  # fewer coins hide less: safe


def test_coordinates_and_groups_of_clients_add_up():
    one, many = PoissonBinomialEvent(4, 0.1, 30, 1), PoissonBinomialEvent(4, 0.1, 30, 70)
    assert many.renyi(ORDERS) == pytest.approx(70 * one.renyi(ORDERS))
    assert many.largest() == pytest.approx(70 * 4 * math.log(0.6 / 0.4))
    high = many.renyi(np.array([1e3, 1e6]))
    assert (high <= many.largest()).all() and high[1] > 0.999 * many.largest() > 2 * many.renyi(ORDERS)[2]
    assert one.grouped(3) == PoissonBinomialEvent(4, 0.1, 30, 1, changed=3)
    assert (one.grouped(3).renyi(ORDERS) > 8 * one.renyi(ORDERS)).all()
    assert one.grouped(99).changed == 30 and PoissonBinomialEvent(2**13, 0.1, 3, 1).renyi(ORDERS)[0] > 0
    assert not one.mirrored and one.pair() is None and one.pure() is None  # no sampler may take it for add/remove


def test_rows_depend_on_their_client_alone_and_zero_survives():
    mechanism, rng = PoissonBinomial(), Stream.research(5)
    x = clip_rows(torch.randn(3, 40, generator=torch.Generator().manual_seed(1)), 2.0, math.inf)
    sent = mechanism.add(x, rng.rows([7, 8, 9]))
    assert torch.equal(sent[2], mechanism.add(Bounded(x.value[2:], 2.0, math.inf), rng.rows([9]))[0])
    assert not torch.equal(sent, mechanism.add(x, rng.rows([1, 2, 3]))) and sent.min() >= 0 and sent.max() <= 16
    zero = mechanism.add(Bounded(torch.zeros(1, 10_000), 2.0, math.inf), rng.rows([1])).double()
    assert abs(float(zero.mean()) - 8) < 0.1


def test_a_row_beyond_its_bound_leans_no_further_than_priced():
    """Planted: the clip was not applied. The coins stop at 1/2 + theta all the same."""
    sent = PoissonBinomial(levels=7, theta=0.25).add(rows(50.0), Stream.research(1).rows(range(200)))
    assert p_value(sent.flatten().numpy(), 7, 0.75) > 1e-3
    with pytest.raises(SpecError, match="Linf"):
        PoissonBinomial().add(Bounded(torch.zeros(1, 2), 1.0, 2), Stream.research(1).rows([1]))
    with pytest.raises(SpecError, match="not finite"):
        PoissonBinomial().add(rows(math.nan), Stream.research(1).rows(range(200)))


def test_the_event_travels():
    event = PoissonBinomial(levels=8, theta=0.1).event(clients=100, dim=26_010)
    assert event == PoissonBinomialEvent(8, 0.1, 100, 26_010) and from_json(to_json(event)) == event


@pytest.mark.parametrize("theta", [0, -0.1, 0.5, 0.7, float("nan"), True])
def test_nonsense_is_refused(theta):
    with pytest.raises(SpecError, match="theta"):
        PoissonBinomial(theta=theta)
    with pytest.raises(SpecError, match="theta"):
        PoissonBinomialEvent(4, theta, 10, 1)
    for levels in (0, 2.0, True, -1, 10**6):
        with pytest.raises(SpecError, match="levels"):
            PoissonBinomial(levels=levels)
    with pytest.raises(SpecError, match="cannot change"):
        PoissonBinomialEvent(4, 0.1, 10, 1, changed=11)
