import math

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.privacy import allocation
from sordino.privacy.accountants import gdp


def test_the_next_rho_of_the_worked_example():
    rho = allocation.next_rho(0.95 * gdp.mu_for(1.0, 1e-5) ** 2 / 2, 40, 0.7, 2.0)
    assert rho == pytest.approx(6.09454e-4, rel=1e-5) and 1 / math.sqrt(2 * rho) == pytest.approx(28.6427, rel=1e-5)


def test_no_sequence_of_ratios_spends_more_than_the_budget():
    rng = np.random.default_rng(4)
    for slope in (0.0, 1.0, 2.0):
        for ratios in (np.zeros(40), np.ones(40), rng.uniform(size=40)):
            left, spent = 0.036, 0.0
            for t, ratio in enumerate(ratios):
                rho = allocation.next_rho(left, 40 - t, float(ratio), slope)
                assert 0 <= rho <= left
                left, spent = left - rho, spent + rho
            assert spent <= 0.036 * (1 + 1e-12)
    assert allocation.next_rho(1.0, 10, 0.9, 1.0) < allocation.next_rho(1.0, 10, 0.1, 1.0)  # more noise for more ratio
    assert allocation.next_rho(1.0, 10, 0.9, 0.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: allocation.next_rho(-1.0, 4, 0.5, 1.0),
        lambda: allocation.next_rho(1.0, 0, 0.5, 1.0),
        lambda: allocation.next_rho(1.0, 4, 1.5, 1.0),
        lambda: allocation.next_rho(1.0, 4, math.nan, 1.0),
        lambda: allocation.next_rho(1.0, 4, 0.5, 2.5),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(SpecError):
        make()
