"""Two neighbouring sums on the lattice are never further apart than it says."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from sordino.core.errors import SpecError
from sordino.core.floats import error_of_sum, gamma, up
from sordino.privacy.clip import clip_rows
from sordino.privacy.lattice import FURTHEST, Lattice


@pytest.mark.parametrize("bound", [1.0, 0.1, 3.7e-6, 2.0**-60, 12345.678, 2.0**60])
@pytest.mark.parametrize("dim", [1, 2, 3, 26_010, 25_000_000])
def test_the_step_is_the_largest_power_of_two_that_adds_a_thousandth(bound, dim):
    lattice = Lattice(bound, dim)
    assert math.frexp(lattice.step)[0] == 0.5
    squared = Fraction(lattice.step) ** 2 * dim
    assert squared <= (Fraction(bound) / 1024) ** 2 < 4 * squared
    assert bound < lattice.sensitivity <= bound * (1 + 2.0**-10) * (1 + 1e-12)
    # never below the exact number
    assert (Fraction(lattice.sensitivity) - Fraction(bound)) ** 2 >= squared


def test_errors_of_sums_enter_twice():
    lattice = Lattice(2.0, 100, error_of_sum(50))
    assert lattice.sensitivity == pytest.approx(2 * (1 + 2 * 50 * 49 * 2.0**-24) + 10 * lattice.step, rel=1e-5)
    assert error_of_sum(1) == 0.0
    assert error_of_sum(50, torch.float64) < 1e-12
    assert gamma(2**24) == math.inf and gamma(10) >= 10 * 2.0**-24 and up(0.0) == 0.0 and up(1.0) > 1.0


def exact_sum(rows: np.ndarray) -> list[Fraction]:
    return [sum((Fraction(float(v)) for v in column), Fraction(0)) for column in rows.T]


def length(x: list[Fraction]) -> float:
    return math.sqrt(float(sum(v * v for v in x)))


def adversarial(kind: str, n: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    x = rng.standard_normal((n, dim))
    if kind == "cancelling":
        x[1::2] = -x[0::2][: len(x[1::2])] * (1 + 1e-6)
    elif kind == "largest":
        x = np.abs(x) * 1e30
    elif kind == "denormal":
        x = x * 1e-42
    elif kind == "mixed":
        x = x * 10.0 ** rng.integers(-40, 30, (n, dim))
    elif kind == "equal":
        x[:] = rng.standard_normal(dim)
    elif kind == "halves":  # next to where rounding turns
        x = (rng.integers(-50, 50, (n, dim)) + 0.5) * Lattice(1.0, dim).step + rng.choice([-1e-9, 0, 1e-9], (n, dim))
    return x.astype(np.float32)


KINDS = ["cancelling", "largest", "denormal", "mixed", "equal", "halves", "normal"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 3, 64])
def test_neighbouring_float_sums_are_within_the_sensitivity(kind, dim):
    """Sums in several orders, with and without each of the contributions, in another order each time."""
    rng, n, bound = np.random.default_rng(len(kind) * dim), 40, 1.0
    rows = clip_rows(torch.from_numpy(adversarial(kind, n, dim, rng)), bound).value
    lattice = Lattice(bound, dim, error_of_sum(n))
    exact = exact_sum(rows.numpy())
    orders = [np.arange(n), np.arange(n)[::-1].copy(), rng.permutation(n), np.argsort(-rows.abs().amax(1).numpy())]
    points = []
    for order in orders:
        total = torch.zeros(dim)
        for i in order:
            total += rows[i]
        off = [Fraction(float(a)) - b for a, b in zip(total, exact, strict=True)]
        assert length(off) <= lattice.error * bound  # the theorem, looked at
        points.append(lattice.points(total))
    points += [lattice.points(rows.sum(0)), lattice.points(torch.ones(n) @ rows)]
    for gone in (0, 7, n - 1):
        left = torch.cat([rows[:gone], rows[gone + 1 :]])
        for other in (left.sum(0), left.flip(0).sum(0), torch.ones(n - 1) @ left):
            for mine in points:
                apart = (mine - lattice.points(other)).norm() * lattice.step
                assert float(apart) <= lattice.sensitivity


def test_rounding_alone_can_use_up_what_the_lattice_adds():
    """Without g sqrt(dim) the sensitivity would be wrong: one contribution that moves every coordinate over a half."""
    dim, g = 64, Lattice(1.0, 64).step
    one = torch.full((dim,), 1.0 / math.sqrt(dim))
    k = float(Lattice(1.0, dim).points(one)[0])
    start = (0.5 - 1e-6 - (1.0 / math.sqrt(dim) / g - k)) * g  # so that the sum is just above a half
    low, high = torch.full((dim,), start).double(), torch.full((dim,), start).double() + one + 2e-6 * g
    lattice = Lattice(1.0 + 2e-6 * g * math.sqrt(dim), dim)
    apart = float((lattice.points(high) - lattice.points(low)).norm()) * g
    assert 1.0 + 0.3 * g * math.sqrt(dim) < apart <= lattice.sensitivity


def test_a_float_sum_can_be_off_by_more_than_the_lattice_allows():
    """Without the float error the sensitivity would be wrong: 2^24 swallows every one that follows it."""
    total = torch.tensor(2.0**24)
    for _ in range(40):
        total = total + 1.0
    assert float(total) == 2.0**24  # off by 40 times the smaller contributions
    assert error_of_sum(41) * 2.0**24 >= 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_are_the_nearest_and_come_back(dtype):
    lattice = Lattice(1.0, 100)
    value = torch.randn(100, dtype=dtype) / 10
    points = lattice.points(value)
    assert points.dtype == torch.float64 and (points == points.round()).all()
    back = lattice.floats(points.clone(), torch.empty(100, dtype=torch.float64))
    assert ((back - value.double()).abs() <= lattice.step / 2).all() and (back / lattice.step == points).all()
    assert torch.equal(lattice.points(back), points)


def test_points_far_out_stay_and_no_two_move_apart():
    lattice = Lattice(1.0, 4)
    points = lattice.points(torch.tensor([1e30, -1e30, 3.0, 0.0]))
    assert points[:2].tolist() == [FURTHEST, -FURTHEST] and points[2] == 3.0 / lattice.step


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad):
    with pytest.raises(SpecError, match="not finite"):
        Lattice(1.0, 2).points(torch.tensor([0.0, bad]))


@pytest.mark.parametrize(
    ("bound", "dim", "error"),
    [(0.0, 1, 0.0), (-1.0, 1, 0.0), (1.0, 0, 0.0), (1.0, 1, -0.1), (2.0**-61, 1, 0.0), (1e300, 1, 0.0)],
)
def test_lattices_that_make_no_sense_are_refused(bound, dim, error):
    with pytest.raises(SpecError):
        Lattice(bound, dim, error)


def test_rows_are_clipped_alike_beside_others():
    """What the proof for a server that clips many rows takes for granted."""
    rows = torch.randn(37, 1001) * torch.logspace(-3, 3, 37)[:, None]
    together = clip_rows(rows, 1.0).value
    for i in range(37):
        assert torch.equal(together[i], clip_rows(rows[i : i + 1], 1.0).value[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_clip_never_leaves_a_row_longer_than_its_bound(kind):
    rows = torch.from_numpy(adversarial(kind, 30, 200, np.random.default_rng(3)))
    for bound in (1.0, 1e-6, 1e6):
        for row in clip_rows(rows, bound).value.numpy():
            assert sum(Fraction(float(v)) ** 2 for v in row) <= Fraction(bound) ** 2
