import math

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.methods import _claims as claims
from sordino.privacy.mechanisms.staircase import Staircase, StaircaseEvent


def right(order, lam, v):
    return float(StaircaseEvent(lam, v).renyi(np.array([order]))[0])


def test_the_printed_density_has_no_mass_of_one():
    assert claims.udp_mass(0.1) == pytest.approx(6.6425, abs=5e-5)
    assert claims.udp_mass(2.0) == pytest.approx(0.7311, abs=5e-5)
    assert claims.udp_mass(1.0) == 1.0


def test_theorem_1_is_not_the_renyi_divergence():
    assert claims.udp_staircase_rdp(2.0, 1.0, 0.3) == pytest.approx(2.6426, abs=5e-5)
    assert math.log(claims.udp_staircase_rdp(2.0, 1.0, 0.3)) == pytest.approx(0.9718, abs=5e-5)
    assert math.log(claims.udp_staircase_rdp(2.0, 1.0, 0.8)) == pytest.approx(0.7990, abs=5e-5)
    assert right(2.0, 1.0, 0.3) == pytest.approx(0.690920695312, rel=1e-9)
    assert right(2.0, 1.0, 0.8) == pytest.approx(0.615389397259, rel=1e-9)


def test_theorem_1_with_its_misprints_undone_is():
    """At v = 1/2 and lambda = 1 no misprint is left but the logarithm."""
    for order in (1.5, 2.0, 8.0):
        printed = claims.udp_staircase_rdp(order, 1.0, 0.5)
        assert math.log(printed) / (order - 1) == pytest.approx(right(order, 1.0, 0.5), rel=1e-12)


def test_theorem_2_knows_no_lambda():
    v = claims.udp_staircase_v(2.0, 3.0)
    assert v == pytest.approx(0.6931, abs=5e-5)
    assert [right(2.0, lam, v) for lam in (1.0, 4.0, 10.0)] == pytest.approx([0.6532, 3.6722, 9.6734], abs=5e-5)
    with pytest.raises(SpecError, match="level must be above 1"):
        claims.udp_staircase_v(2.0, 0.5)


def test_theorem_3_does_not_scale_with_the_step():
    one, tenth = (claims.udp_l1_error(1, 1, 1.0, 0.4, step) for step in (1.0, 0.1))
    assert one == pytest.approx(1.324, abs=5e-4) and tenth == pytest.approx(0.0656, abs=5e-5)
    assert Staircase(1.0, 0.4).mean_abs(1.0) == pytest.approx(0.959774215547, rel=1e-9)
    assert Staircase(1.0, 0.4).mean_abs(0.1) == pytest.approx(0.0959774215547, rel=1e-9)
    assert claims.udp_l1_error(7, 3, 1.0, 0.4, 1.0) == pytest.approx(21 * one)


@pytest.mark.parametrize("keys", [{"order": 1.0}, {"v": 1.5}, {"lam": 0.0}])
def test_nonsense_is_refused(keys):
    with pytest.raises(SpecError):
        claims.udp_staircase_rdp(**({"order": 2.0, "lam": 1.0, "v": 0.3} | keys))
