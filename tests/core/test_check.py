import math

import numpy as np
import pytest

from sordino.core import check
from sordino.core.errors import SordinoError, SpecError

NUMBERS = (check.positive, check.non_negative, check.probability, check.below_one, check.fraction)
NOT_NUMBERS = (True, False, math.nan, math.inf, -math.inf, 1e400, 10**400, "1", None, [1], np.nan, np.bool_(True))


@pytest.mark.parametrize("validator", NUMBERS)
@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda v: f"{type(v).__name__}-{str(v)[:8]}")
def test_what_is_not_a_finite_number_is_refused(validator, value):
    with pytest.raises(SpecError, match="clip must be"):
        validator(clip=value)


@pytest.mark.parametrize(
    ("validator", "good", "bad"),
    [
        (check.positive, (1e-300, 1, 3.5, np.float32(2)), (0, -1, -1e-300)),
        (check.non_negative, (0, 0.0, 7), (-1e-9,)),
        (check.probability, (1e-9, 1, 1.0), (0, 1.0000001, -0.5)),
        (check.below_one, (1e-9, 0.999), (0, 1, 1.0, 2)),
        (check.fraction, (0, 0.0, 0.999), (1, -0.1)),
        (check.count, (1, 10**9, np.int64(3)), (0, -3)),
    ],
)
def test_the_border_of_every_range(validator, good, bad):
    for value in good:
        validator(x=value)
    for value in bad:
        with pytest.raises(SpecError, match="x must"):
            validator(x=value)


@pytest.mark.parametrize("value", [True, 1.0, "3", None, math.nan])
def test_a_count_is_a_whole_number(value):
    with pytest.raises(SpecError, match="rounds must be a whole number"):
        check.count(rounds=value)


def test_one_of_names_the_options():
    check.one_of(("a", "b"), mode="b")
    with pytest.raises(SordinoError, match="mode must be one of a, b, not 'c'"):
        check.one_of(("a", "b"), mode="c")


def test_every_value_is_looked_at():
    with pytest.raises(SpecError, match="second"):
        check.positive(first=1, second=-1)
