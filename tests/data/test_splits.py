"""Held-out records: each for itself."""

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.data import partition, splits

RNG = Stream.research(4)
PARTS = partition.iid(600, 12, Stream.research(1))


def test_validation_records_depend_on_their_own_client_alone():
    train, held = splits.validation(PARTS, 0.2, RNG)
    for part, a, b in zip(PARTS, train, held, strict=True):
        assert sorted([*a, *b]) == part.tolist() and len(a) >= 1
    assert 80 < sum(map(len, held)) < 160
    longer = [*PARTS[:-1], np.append(PARTS[-1], 999), np.array([1000])]
    more, more_held = splits.validation(longer, 0.2, RNG)
    assert all(np.array_equal(a, b) for a, b in zip(train[:-1], more[:-2], strict=True))
    assert held[-1].tolist() == [r for r in more_held[-2].tolist() if r != 999]  # one record more moves no other
    assert more[-1].tolist() == [1000] and not len(more_held[-1])  # a lone record is trained on
    for share in (0.0, 1.0):
        with pytest.raises(SpecError, match="share"):
            splits.validation(PARTS, share, RNG)


def test_tuning_records_are_drawn_each_for_itself():
    kept, held = splits.tuning(1000, 0.3, RNG)
    assert sorted([*kept, *held]) == list(range(1000)) and 250 < len(held) < 350
    _, more = splits.tuning(1200, 0.3, RNG)
    assert held.tolist() == [r for r in more.tolist() if r < 1000]
