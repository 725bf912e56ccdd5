"""Basic, advanced and optimal composition, zCDP: golden values and inverses."""

import math

import pytest

from sordino.core.errors import UnsupportedEvent
from sordino.privacy.accountants import advanced, basic, kov, single, zcdp
from sordino.privacy.events import Approximate, Composed, GaussianEvent, Pure, Repeated, Sampled


def test_basic_adds_up():
    assert basic.epsilon(Composed((Pure(0.5), Repeated(Pure(0.1), 7))), 1e-5) == pytest.approx(1.2, rel=1e-12)
    noisy = Composed((Pure(0.5), Repeated(GaussianEvent(2.0), 3)))
    one = single._approximate(GaussianEvent(2.0), 1e-5 / 3).epsilon
    assert basic.epsilon(noisy, 1e-5) == pytest.approx(0.5 + 3 * one, rel=1e-12)


def test_advanced_is_the_theorem():
    assert advanced.epsilon(Repeated(Pure(0.1), 100), 1e-5) == pytest.approx(5.85023509294, rel=1e-9)
    assert advanced.of_steps([(0.1, 50), (0.1, 50)], 1e-5) == pytest.approx(5.85023509294, rel=1e-9)


def test_kov_golden_values():
    """delta_i = sum_{l<i} C(k,l)(e^{(k-l)e} - e^{(k-2i+l)e})/(1+e^e)^k at eps' = (k-2i) e."""
    assert kov.delta_of(0.5, 10, 2.0) == pytest.approx(0.145466446441, rel=1e-9)
    assert kov.delta_of(0.1, 30, 1.0) == pytest.approx(0.0105616763386, rel=1e-9)
    total = 1 - (1 - 1e-6) ** 10 * (1 - kov.delta_of(0.5, 10, 2.0))
    assert total == pytest.approx(0.145474991738, rel=1e-9)
    assert kov.of_steps(0.5, 1e-6, 10, total) == pytest.approx(2.0, rel=1e-9)
    assert kov.epsilon(Repeated(Pure(0.1), 100), 1e-5) == pytest.approx(4.30679137252, rel=1e-9)


def test_kov_sums_the_terms_by_hand():
    k, e = 17, 0.3
    for at in (0.0, 0.4, 1.3, 4.0):
        by_hand = (
            math.fsum(math.comb(k, i) * max(0.0, math.exp((k - i) * e) - math.exp(at + i * e)) for i in range(k + 1))
            / (1 + math.exp(e)) ** k
        )
        assert kov.delta_of(e, k, at) == pytest.approx(by_hand, rel=1e-9, abs=1e-300)


def test_kov_wants_equal_releases_and_a_delta_that_pays_for_them():
    with pytest.raises(UnsupportedEvent, match="equal"):
        kov.epsilon(Composed((Pure(0.1), Pure(0.2))), 1e-5)
    assert math.isinf(kov.of_steps(0.1, 1e-5, 10, 5e-5))
    assert kov.of_steps(900.0, 0.0, 2, 1e-5) == pytest.approx(1800, rel=1e-2)


def test_a_sampled_pure_release_is_amplified():
    assert single.pure_of(Sampled(Pure(1.0), 0.1)) == pytest.approx(0.15856507874, rel=1e-9)
    assert single.pure_of(Sampled(GaussianEvent(1.0), 0.1)) is None
    assert single.pure_of(Approximate(1.0, 1e-6)) is None


def test_zcdp_golden_values():
    assert zcdp.epsilon_of_rho(0.125, 1e-5) == pytest.approx(2.16571554518, rel=1e-9)


def test_zcdp_adds_rhos():
    event = Composed((GaussianEvent(2.0), Repeated(Pure(0.1), 5)))
    assert zcdp.rho_of(event) == pytest.approx(0.125 + 5 * 0.005, rel=1e-12)
    for delta in (1e-3, 1e-12):
        assert zcdp.delta(event, zcdp.epsilon(event, delta)) == pytest.approx(delta, rel=1e-6)
    assert (
        zcdp.epsilon(Repeated(GaussianEvent(1.0), 0), 1e-5) == 0.0 == zcdp.delta(Repeated(GaussianEvent(1.0), 0), 1.0)
    )
    with pytest.raises(UnsupportedEvent, match="sampled"):
        zcdp.epsilon(Sampled(GaussianEvent(1.0), 0.1), 1e-5)
