import numpy as np
import pytest
import torch
from scipy.stats import poisson

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import pairs
from sordino.privacy.mechanisms.skellam import Skellam, SkellamEvent
from sordino.privacy.quantise import Bounds, Integers
from sordino.privacy.written import from_json, to_json
from support.integer_laws import chi_square, skellam, skellam_renyi

ORDERS = np.array([1.01, 1.5, 2.0, 3.3, 8.0, 32.0, 100.0])
TWO = Bounds(dim=500, l1=4, l2_squared=4, linf=2)


def p_value(x: np.ndarray, mu: float) -> float:
    return chi_square(x, *skellam(mu))


@pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])
def test_noise_has_the_promised_scale_and_no_other(rng):
    rows = Integers(torch.full((200, 500), 0), TWO)
    rows.value[:, 3] = -2
    noise = (Skellam(1.5).add(rows, rng.rows(range(200))) - rows.value).flatten().numpy()
    assert p_value(noise, 9.0) > 1e-3  # follows the bound
    for wrong in (1.05, 1 / 1.05, 0.5):
        assert p_value(noise, 9.0 * wrong**2) < 1e-3
    assert p_value(noise + 1, 9.0) < 1e-3


def test_shares_of_the_noise_add_up_to_the_whole():
    n, rng = 6, Stream.research(5)
    mechanism, rows = Skellam(1.5), Integers(torch.zeros(n * 100, 500, dtype=torch.int64), TWO)
    sums = mechanism.add(rows, rng.rows(range(n * 100)), clients=n).view(n, 100, 500).sum(dim=0).flatten().numpy()
    assert p_value(sums, 9.0) > 1e-3 and p_value(sums, 9.0 * 1.1) < 1e-3
    assert mechanism.share(TWO, n) * n == 9 and mechanism.event(TWO, n).mu == pytest.approx(9.0)
    assert mechanism.event(TWO, n).distance > mechanism.event(TWO).distance


def test_probabilities_are_a_difference_of_poissons():
    k, mass = skellam(7.0)
    n = np.arange(120)
    naive = [float((poisson.pmf(n, 3.5) * poisson.pmf(n + j, 3.5)).sum()) for j in range(12)]
    assert [float(mass[k == j][0]) for j in range(12)] == pytest.approx(naive, rel=1e-10)
    assert float((k * k * mass).sum()) == pytest.approx(7.0, rel=1e-10) and mass.sum() == pytest.approx(1.0, rel=1e-12)


def test_golden_values():
    assert skellam_renyi(10.0, 1, np.array([8.0]))[0] == pytest.approx(0.364633808206, rel=1e-11)
    assert SkellamEvent(10.0, 1, 1).renyi(np.array([8.0]))[0] == pytest.approx(0.4525, rel=1e-12)
    l1_and_l2 = SkellamEvent(100.0, 12, 4).renyi(np.array([2.0]))[0]  # 2*16/200 + min((3*16+72)/40000, 36/200)
    assert l1_and_l2 == pytest.approx(0.16 + 0.003, rel=1e-12)


@pytest.mark.parametrize("mu", [0.5, 10.0, 400.0])
@pytest.mark.parametrize("shift", [1, 3, 10])
def test_the_bound_lies_above_the_exact_divergence(mu, shift):
    event, exact = SkellamEvent(mu, shift, shift), skellam_renyi(mu, shift, ORDERS)
    assert (exact <= event.renyi(ORDERS)).all() and (np.diff(event.renyi(ORDERS)) >= 0).all()
    if mu == 400.0:  # and is close enough there to catch half the noise (half the deviation) and one step more
        assert (skellam_renyi(mu / 4, shift, ORDERS[2:]) > event.renyi(ORDERS[2:])).all()
        assert (skellam_renyi(mu, shift + 1, ORDERS[2:4]) > event.renyi(ORDERS[2:4])).all()


def test_two_coordinates_are_bounded_too():
    for a, b in ((1, 1), (3, 1), (5, 2)):
        event = SkellamEvent(20.0, a + b, float(np.hypot(a, b)))
        assert (skellam_renyi(20.0, a, ORDERS) + skellam_renyi(20.0, b, ORDERS) <= event.renyi(ORDERS)).all()


def test_between_whole_orders_the_curve_is_the_chord():
    event, a = SkellamEvent(3.0, 2, 2), np.array([2.0, 2.25, 3.0])
    at = (a - 1) * event.renyi(a)
    assert at[1] == pytest.approx(0.75 * at[0] + 0.25 * at[2], rel=1e-12)
    assert event.renyi(np.array([1.0001]))[0] == pytest.approx(event.renyi(np.array([2.0]))[0])


@pytest.mark.parametrize("z", [1.0, 4.0])
def test_the_table_itself_is_no_easier_to_see_than_the_event_says(z):
    bounds, mechanism = Bounds(1, 3, 9, 3), Skellam(z)
    mass, none = np.array([float(m) for m in mechanism.table(bounds).probabilities()[1]]), np.zeros(3)
    pair = pairs.Atoms.of(np.append(none, mass), np.append(mass, none))
    for delta in (1e-3, 1e-7):
        grid = np.arange(2.0, 200)
        cost = mechanism.event(bounds).renyi(grid) + np.log1p(-1 / grid) - (np.log(delta) + np.log(grid)) / (grid - 1)
        assert pairs.delta(pair, float(cost.min())) <= delta
        assert pairs.delta(pair, float(cost.min()) / 2.5) > delta  # and a much smaller claim would be false


def test_events_say_what_was_added_and_travel():
    event = Skellam(1.5).event(TWO)
    assert event.mu == pytest.approx(9.0) and event.mu <= 9 and (event.l1, event.l2) == (4, pytest.approx(2.0))
    assert event.l2 >= 2 and 0 < event.distance < 1e-30 and from_json(to_json(event)) == event
    assert event.grouped(2) == SkellamEvent(event.mu, 8, 2 * event.l2, event.distance)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True, "1"])
def test_nonsense_is_refused(bad):
    with pytest.raises(SpecError, match="noise_multiplier"):
        Skellam(bad)
    with pytest.raises(SpecError, match="clients"):
        Skellam(1.0).share(TWO, bad if bad != 1 else 0)
