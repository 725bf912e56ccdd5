import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import quantise as module
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.quantise import Bounds, Integers, bounds, quantise

NORMS = pytest.mark.parametrize("norm", [1, 2, math.inf])


def keeps(x: torch.Tensor, b: Bounds) -> bool:
    rows = [[int(v) for v in row] for row in x]
    return all(
        sum(map(abs, r)) <= b.l1 and sum(v * v for v in r) <= b.l2_squared and max(map(abs, r)) <= b.linf for r in rows
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=5, max_size=5), min_size=1, max_size=4),
    st.sampled_from([1, 2, math.inf]),
    st.floats(0.05, 50),
    st.floats(0.01, 3),
)
def test_adversarial_rows_keep_their_bounds(rows, norm, clip, granularity):
    x = quantise(clip_rows(torch.tensor(rows), clip, norm), granularity, Stream.research(1).rows(range(len(rows))))
    assert x.value.dtype == torch.int64 and keeps(x.value, x.bounds)
    near = torch.tensor(rows)  # rounding moves a coordinate by less than a step
    near = clip_rows(near, clip, norm).value.double() / granularity
    assert float((x.value - near).abs().max()) < 1 + 1e-9


@NORMS
def test_rows_on_the_edge_of_their_bound_keep_it(norm):
    """Each coordinate just above a whole number of steps, in 400 dimensions: rounding wants to raise them all."""
    dim, rng = 400, Stream.research(2).rows(range(200))
    clip = {1: 1.001 * dim, 2: 1.001 * math.sqrt(dim), math.inf: 1.001}[norm]
    x = quantise(Bounded(torch.full((200, dim), 1.001 * (1 - 1e-6)), clip, norm), 1.0, rng)
    assert keeps(x.value, x.bounds) and not keeps(torch.full((1, dim), 3), x.bounds)


def test_the_bound_is_the_one_of_the_paper():
    b = bounds(10.0, 2, 100, 0.5)  # c = 20 steps: 400 + 25 + 20 + 5
    assert b == Bounds(dim=100, l1=212, l2_squared=450, linf=20)
    assert bounds(0.5, 2, 4, 1.0) == Bounds(dim=4, l1=2, l2_squared=2, linf=1)  # 1/4 + 1 + 1/2 + 1 = 2.75
    assert bounds(3.0, 1, 100, 0.5) == Bounds(dim=100, l1=11, l2_squared=66, linf=6)  # 6 + sqrt(100)/2
    assert bounds(3.0, math.inf, 10, 0.5) == Bounds(dim=10, l1=60, l2_squared=360, linf=6)
    assert Fraction(Bounds(1, 2, 2, 1).l2) ** 2 >= 2  # never rounded down


def test_rounding_is_unbiased_up_to_what_the_bound_rejects():
    value = torch.tensor([0.3, -1.7, 2.5, 0.0, 0.01, -0.99])
    n = 40_000
    clip = float(value.norm()) * 1.5  # hardly anything is rejected
    x = quantise(Bounded(value.repeat(n, 1), clip), 1.0, Stream.research(3).rows(range(n))).value.double()
    assert (x.mean(dim=0) - value).abs().max() < 5 * 0.5 / math.sqrt(n)
    down = torch.trunc(value)
    assert (down.repeat(n, 1).mean(dim=0) - value).abs().max() > 0.5  # the test sees rounding that is not random
    # at the bound itself the conditional bias is seen, and is towards zero only
    tight = quantise(Bounded(value.repeat(n, 1), float(value.norm()) * 1.0001), 1.0, Stream.research(4).rows(range(n)))
    assert tight.value.abs().double().mean(dim=0).le(value.abs() + 5 * 0.5 / math.sqrt(n)).all()


def test_chunks_of_rows_change_nothing(monkeypatch):
    rows, rng = clip_rows(torch.randn(9, 7, generator=torch.Generator().manual_seed(0)), 2.0), Stream.research(5)
    whole = quantise(rows, 0.25, rng.rows(range(9)))
    monkeypatch.setattr(module, "CHUNK", 15)
    assert torch.equal(whole.value, quantise(rows, 0.25, rng.rows(range(9))).value)


def test_a_row_that_is_always_rejected_is_rounded_towards_zero(monkeypatch):
    monkeypatch.setattr(module, "TRIES", 0)
    value = torch.tensor([[0.9, -1.9, 2.0]])
    assert quantise(Bounded(value, 3.0), 1.0, Stream.research(1).rows([1])).value.tolist() == [[0, -1, 2]]


@NORMS
def test_zero_rows_survive_and_rows_depend_on_their_client_alone(norm):
    rows = clip_rows(torch.randn(3, 30, generator=torch.Generator().manual_seed(0)), 2.0, norm)
    rows.value[1] = 0
    rng = Stream.research(5)
    x = quantise(rows, 0.25, rng.rows([7, 8, 9]))
    assert not x.value[1].any()
    alone = quantise(Bounded(rows.value[2:], 2.0, norm), 0.25, rng.rows([9]))
    assert torch.equal(alone.value[0], x.value[2]) and alone.bounds == x.bounds
    assert not torch.equal(quantise(rows, 0.25, rng.rows([1, 2, 3])).value, x.value)  # rounding is random
    assert quantise(Bounded(rows.value[:0], 2.0, norm), 0.25, rng.rows([])).value.shape == (0, 30)


@NORMS
def test_rows_that_were_not_clipped_are_refused(norm):
    with pytest.raises(SpecError, match="clip it first"):
        quantise(Bounded(torch.full((1, 9), 5.0), 1.0, norm), 0.5, Stream.research(1).rows([1]))
    with pytest.raises(SpecError, match="not finite"):
        quantise(Bounded(torch.tensor([[math.nan]]), 1.0, norm), 0.5, Stream.research(1).rows([1]))


@pytest.mark.parametrize("bad", [[[3, 0]], [[0, -3]], [[2, 2]], [[-(2**63), 0]], [[2**32, 2**32]]])
def test_integers_are_looked_at_not_believed(bad):
    b = Bounds(dim=2, l1=4, l2_squared=5, linf=2)
    assert Integers(torch.tensor([[2, -1], [0, 0]]), b).value.shape == (2, 2)
    with pytest.raises(SpecError, match="exceeds its bounds"):
        Integers(torch.tensor(bad), b)
    with pytest.raises(SpecError, match="int64"):
        Integers(torch.tensor(bad).double(), b)
    with pytest.raises(SpecError, match="int64"):
        Integers(torch.tensor([[1, 1, 1]]), b)


@pytest.mark.parametrize(("clip", "granularity", "dim"), [(1e10, 1.0, 1), (1.0, 1e-10, 10**6), (1e300, 1e-300, 5)])
@NORMS
def test_a_lattice_too_fine_for_64_bits_is_refused(clip, granularity, dim, norm):
    with pytest.raises(SpecError, match="larger granularity"):
        bounds(clip, norm, dim, granularity)


def test_a_secure_sum_has_32_bits():
    b = bounds(1.0, 2, 1000, 1e-3)  # up to 1000
    assert b.linf == 1000 and b.modulus(clients=100, noise=500.0) == 18
    assert 2**17 < 2 * (100 * 1000 + 5000) < 2**18
    with pytest.raises(SpecError, match="secure sums have 32"):
        b.modulus(clients=3_000_000, noise=0.0)


@pytest.mark.parametrize("granularity", [0, -1.0, math.nan, math.inf, True])
def test_nonsense_is_refused(granularity):
    with pytest.raises(SpecError, match="granularity"):
        quantise(Bounded(torch.zeros(1, 2), 1.0), granularity, Stream.research(1).rows([1]))
    with pytest.raises(SpecError, match="norm"):
        bounds(1.0, 3, 4, 0.1)
