import math

import pytest
import torch

from sordino.core.errors import SpecError
from sordino.privacy.clip import clip_rows

DRAW = torch.Generator().manual_seed(3)
ROWS = {
    "random": torch.randn(50, 33, generator=DRAW),
    "wide": torch.randn(4, 100_000, generator=DRAW),
    "huge": 1e30 * torch.randn(20, 9, generator=DRAW),
    "largest": torch.full((2, 5), torch.finfo(torch.float32).max),
    "tiny": 1e-38 * torch.randn(20, 9, generator=DRAW),
    "denormal": torch.full((3, 4), 1e-44),
    "zero": torch.zeros(3, 7),
    "one column": torch.randn(30, 1, generator=DRAW),
    "no column": torch.zeros(3, 0),
    "no row": torch.zeros(0, 5),
    "nan": torch.tensor([[math.nan, 1.0], [3.0, 4.0]]),
    "infinite": torch.tensor([[math.inf, 1.0], [-math.inf, math.inf], [3.0, 4.0]]),
}


@pytest.mark.parametrize("bound", [1e-3, 0.1, 1.0, 3.7, 1e6])
@pytest.mark.parametrize("name", ROWS)
def test_no_row_is_longer_than_the_bound(name, bound):
    rows = ROWS[name]
    kept = rows.clone()
    clipped = clip_rows(rows, bound)
    assert clipped.bound == bound and clipped.value.shape == rows.shape and clipped.value.dtype == rows.dtype
    norms = clipped.value.double().norm(dim=1)  # float32 rows, their norms in float64
    assert torch.isfinite(clipped.value).all() and bool((norms <= bound).all())
    assert torch.equal(torch.nan_to_num(rows), torch.nan_to_num(kept))  # what came in is left alone
    finite = torch.isfinite(rows).all(dim=1)
    long = finite & (rows.double().norm(dim=1) > bound)
    assert torch.allclose(norms[long], torch.tensor(bound, dtype=torch.float64), rtol=3e-6)  # and not shorter
    short = finite & (rows.double().norm(dim=1) < bound * (1 - 1e-5))
    assert torch.equal(clipped.value[short], rows[short])
    assert not clipped.value[~finite].any()  # what is not finite tells nothing


def test_a_row_at_the_bound_stays_within_it():
    draw = torch.Generator().manual_seed(4)
    rows = torch.randn(2000, 101, generator=draw)
    rows = (0.7 * rows.double() / rows.double().norm(dim=1, keepdim=True)).float()  # half of them a hair above
    assert bool((rows.double().norm(dim=1) > 0.7).any())
    clipped = clip_rows(rows, 0.7).value
    assert bool((clipped.double().norm(dim=1) <= 0.7).all())
    assert torch.allclose(clipped, rows, rtol=3e-6)


def test_direction_is_kept_and_rows_are_clipped_alone():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [-30.0, 40.0]])
    clipped = clip_rows(rows, 1.0).value
    assert torch.allclose(clipped, torch.tensor([[0.6, 0.8], [0.3, 0.4], [-0.6, 0.8]]), atol=1e-5)
    for i in range(3):
        assert torch.equal(clip_rows(rows[i : i + 1], 1.0).value[0], clipped[i])


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf, True])
def test_a_bound_is_a_positive_number(bound):
    with pytest.raises(SpecError, match="clip"):
        clip_rows(torch.zeros(1, 1), bound)
