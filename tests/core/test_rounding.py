import math

import pytest

from sordino.core.rounding import down, small_up, up


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (2.0, "2"),
        (1.9995001, "2"),
        (1.0001, "1.001"),
        (0.1234, "0.124"),
        (2.0000000001, "2"),
        (math.inf, "infinite"),
        (83056.1231, "83056.124"),
        (1e6, "1.00e6"),
        (69009966.6, "6.91e7"),
        (1.177478e10, "1.18e10"),
        (9.999e6, "1.00e7"),
    ],
)
def test_an_epsilon_is_rounded_up(epsilon, text):
    assert up(epsilon) == text


def test_no_epsilon_is_shown_smaller_than_it_is():
    for i in range(1, 3000):
        assert float(up(i * 0.0037)) >= i * 0.0037 - 1e-8
        assert i * 3.7e5 * (1 - 1e-9) <= float(up(i * 3.7e5)) <= i * 3.7e5 * 1.01


@pytest.mark.parametrize(
    ("delta", "text"),
    [(0.0, "0"), (1e-5, "1e-05"), (0.00025143, "0.000252"), (2.2009e-4, "0.000221"), (3e-5, "3e-05"), (1.0, "1")],
)
def test_a_delta_is_rounded_up(delta, text):
    assert small_up(delta) == text
    assert all(d * (1 - 1e-8) <= float(small_up(d)) <= 1.01 * d for d in (delta * i / 97 for i in range(1, 97)))


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.198, 2, "1.19"),
        (0.92999, 3, "0.929"),
        (1.1999, 3, "1.199"),
        (0.3, 2, "0.3"),
        (0.0, 2, "0"),
        (2.5e13, 3, "2e13"),
        (1e300, 3, "1e300"),
    ],
)
def test_a_lower_bound_is_rounded_down(value, digits, text):
    assert down(value, digits) == text
