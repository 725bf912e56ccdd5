import math

import pytest

from sordino.core.errors import SpecError
from sordino.methods import _claims as claims
from sordino.privacy.accountants import gdp


def test_golden_nbafl():
    assert claims.nbafl_factor(0.01) == pytest.approx(3.10751146009, rel=1e-9)
    assert claims.nbafl_uplink_std(20, 1000, 50, 0.01, exposures=25) == pytest.approx(0.0621502292018, rel=1e-9)
    down = claims.nbafl_downlink_std(20, 1000, 50, 0.01, rounds=200, exposures=25, clients=50)
    assert down == pytest.approx(0.00465089728366, rel=1e-9)
    assert claims.nbafl_downlink_std(20, 1000, 50, 0.01, rounds=176, exposures=25, clients=50) == 0.0  # T <= L sqrt N
    assert claims.nbafl_downlink_std(20, 1000, 50, 0.01, rounds=177, exposures=25, clients=50) > 0.0


def naive_scheduled(clip, m, eps, delta, rounds, exposures, n, k):
    """As it stands in the notes; nan where a logarithm or a root does not exist."""
    c = math.sqrt(2 * math.log(1.25 / delta))
    gamma = -math.log(1 - k / n + k / n * math.exp(-eps / (exposures * math.sqrt(k))))
    inside = 1 - n / k + n / k * math.exp(-eps / rounds)
    if inside <= 0:
        return math.nan, rounds > eps / gamma
    b = -rounds / eps * math.log(inside)
    missing = rounds**2 / b**2 - exposures**2 * k
    std = 2 * c * clip * math.sqrt(missing) / (m * k * eps) if missing > 0 else math.nan
    return std, rounds > eps / gamma


def test_the_noise_of_k_of_n_clients_exists_just_where_its_condition_says():
    """The unsure formula is at one with itself: T > eps/gamma is where b and the root exist."""
    seen = set()
    for eps in (0.5, 8.0, 50.0):
        for k, exposures in ((5, 1), (20, 2), (49, 4)):
            for rounds in (2, 5, 14, 30, 60, 200, 1000):
                std, condition = naive_scheduled(20, 1000, eps, 0.01, rounds, exposures, 50, k)
                found = claims.nbafl_scheduled_std(20, 1000, eps, 0.01, rounds, exposures, 50, k)
                assert condition == (not math.isnan(std))
                assert found == (pytest.approx(std, rel=1e-8) if condition else 0.0)
                seen.add(condition)
    assert seen == {True, False}


def test_all_of_n_clients_is_the_plain_case():
    all_of, plain = (20, 1000, 50, 0.01, 200, 25, 50), claims.nbafl_downlink_std(20, 1000, 50, 0.01, 200, 25, 50)
    assert claims.nbafl_scheduled_std(*all_of, drawn=50) == plain
    assert claims.nbafl_scheduled_std(*all_of, drawn=50 - 1e-7) == pytest.approx(plain, rel=1e-4)
    assert claims.nbafl_scheduled_std(20, 1000, 1e7, 0.01, 200, 25, 50, drawn=50) > 0  # however large epsilon is
    assert abs(claims.nbafl_scheduled_std(*all_of, drawn=45) / plain - 1) > 0.2
    with pytest.raises(SpecError, match="there are 50"):
        claims.nbafl_scheduled_std(*all_of, drawn=51)


def test_golden_fedsdp():
    assert claims.fedsdp_mu(0.1, 0.02, 0.5) == pytest.approx(0.0346603356385, rel=1e-9)
    # of many rounds, exact for Gaussians, which the paper does not count
    totals = [gdp.epsilon_of_mu(math.sqrt(40) * claims.fedsdp_mu(e / 10, 0.02, 0.5), 1e-5) for e in range(1, 6)]
    assert totals == pytest.approx([0.802, 1.722, 2.711, 3.762, 4.869], abs=5e-4)
    assert gdp.epsilon_of_mu(20 * claims.fedsdp_mu(0.5, 0.02, 0.5), 1e-5) == pytest.approx(20.1, abs=0.05)


def test_the_std_is_the_mu():
    assert claims.fedsdp_std(1.0, 500, 0.1, 0.02, 0.5) == pytest.approx(
        0.004 / claims.fedsdp_mu(0.1, 0.02, 0.5), rel=1e-12
    )
    assert claims.fedsdp_std(1.0, 500, 0.5, 1e-5, 0.0) == pytest.approx(0.004 * 4.7985 / 0.5, rel=1e-5)
    assert claims.fedsdp_std(1.0, 500, 0.5, 1e-5, 0.0, floor=100.0) == pytest.approx(0.004 * 10 / 0.5, rel=1e-12)


def test_golden_xue():
    assert claims.xue_delta(0.5, 7, 26) == pytest.approx(7.3376993311e-06, rel=1e-9)
    assert claims.xue_exact_delta(0.5, 7, 26) == pytest.approx(1.10529193119e-08, rel=1e-9)


def test_algorithm_4_is_the_minimum_over_whole_orders():
    for eps, rounds, sigma in [(0.5, 7, 26.0), (2.0, 108, 26.0), (8.0, 208, 10.0), (0.3, 2, 26.0), (0.1, 5, 1.0)]:
        naive = min((a - 1) * (rounds * a / (2 * sigma**2) - eps) for a in range(2, 2000))
        assert claims.xue_delta(eps, rounds, sigma) == pytest.approx(math.exp(min(0.0, naive)), rel=1e-12)
        assert claims.xue_exact_delta(eps, rounds, sigma) < claims.xue_delta(eps, rounds, sigma)


@pytest.mark.parametrize(("eps", "sigma", "printed", "exact"), [(0.5, 26, 7, 13), (2, 26, 108, 170), (8, 10, 208, 277)])
def test_the_rounds_that_algorithm_4_allows(eps, sigma, printed, exact):
    for formula, rounds in ((claims.xue_delta, printed), (claims.xue_exact_delta, exact)):
        assert formula(eps, rounds, sigma) <= 1e-5 < formula(eps, rounds + 1, sigma)


def test_why_nbafl_is_a_claim():
    """One upload with the noise it prints, at the true sensitivity 2C: a thousand records too little."""
    std = claims.nbafl_uplink_std(1.0, 1000, 1.0, 1e-5)
    assert gdp.epsilon_of_mu(2.0 / 1000 / std, 1e-5) < 1.0  # what it says, were the sensitivity 2C/m
    assert gdp.epsilon_of_mu(2.0 / std, 1e-5) > 10_000


@pytest.mark.parametrize(
    "make",
    [
        lambda: claims.nbafl_factor(0.0),
        lambda: claims.nbafl_uplink_std(0.0, 1000, 50, 0.01),
        lambda: claims.nbafl_uplink_std(1.0, 0, 50, 0.01),
        lambda: claims.nbafl_uplink_std(1.0, 10, math.nan, 0.01),
        lambda: claims.nbafl_downlink_std(1.0, 10, 1.0, 0.01, 0, 1, 1),
        lambda: claims.fedsdp_mu(-1.0, 0.02, 0.5),
        lambda: claims.fedsdp_mu(1.0, 1.0, 0.5),
        lambda: claims.fedsdp_mu(1.0, 0.02, -0.1),
        lambda: claims.fedsdp_std(1.0, True, 1.0, 0.02, 0.1),
        lambda: claims.xue_delta(0.5, 0, 26),
        lambda: claims.xue_delta(0.5, 7, 0),
        lambda: claims.xue_exact_delta(math.inf, 7, 26),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(SpecError):
        make()
