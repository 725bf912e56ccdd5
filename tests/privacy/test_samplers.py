import numpy as np
import pytest
from scipy.stats import chi2

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import events
from sordino.privacy.events import GaussianEvent, Repeated, Sampled, Visible
from sordino.privacy.samplers import FixedSizeSampler, Poisson, of_records_inside

DRAWS, POPULATION = 4000, 40
BOTH = pytest.mark.parametrize("rng", [Stream.research(5), Stream(bytes(range(32)), True)], ids=["research", "secure"])


def indicator(sampler, rng):
    """[draws, population]: who was drawn."""
    out = np.zeros((DRAWS, POPULATION))
    for i in range(DRAWS):
        out[i, sampler.draw(POPULATION, rng.at("draw", i))] = 1
    return out


def marginal_p(drawn, rate):
    """Chi-square of every unit's count against the rate."""
    z = (drawn.sum(axis=0) - DRAWS * rate) ** 2 / (DRAWS * rate * (1 - rate))
    return chi2.sf(z.sum(), POPULATION)


def variance_ratio(drawn, rate):
    """Variance of the number drawn over that of independent draws; 1 means pairwise independence."""
    return drawn.sum(axis=1).var() / (POPULATION * rate * (1 - rate))


@BOTH
def test_poisson_has_the_rate_and_is_pairwise_independent(rng):
    drawn = indicator(Poisson(0.3), rng)
    assert marginal_p(drawn, 0.3) > 1e-3
    assert marginal_p(drawn, 0.33) < 1e-3
    spread = 5 * np.sqrt(2 / DRAWS)  # five deviations of a variance
    assert abs(variance_ratio(drawn, 0.3) - 1) < spread
    pairs = np.corrcoef(drawn.T)[np.triu_indices(POPULATION, 1)]
    assert np.abs(pairs).max() < 5 / np.sqrt(DRAWS)


def test_what_is_not_poisson_is_rejected_by_the_same_statistic():
    rng, spread = Stream.research(6), 5 * np.sqrt(2 / DRAWS)
    fixed = indicator(FixedSizeSampler(12), rng)  # the same marginal rate
    assert marginal_p(fixed, 0.3) > 1e-3 and abs(variance_ratio(fixed, 0.3) - 1) > spread

    class Lumpy:  # all or nobody in halves: the right rate again
        def draw(self, n, rng):
            return np.concatenate([np.arange(h, n, 2) for h in (0, 1) if rng.at(h).uniform(1)[0] < 0.3] or [[]]).astype(
                int
            )

    lumpy = indicator(Lumpy(), rng)
    assert abs(lumpy.mean() - 0.3) < 0.03 and abs(variance_ratio(lumpy, 0.3) - 1) > spread


@BOTH
def test_fixed_size_is_exact_and_uniform(rng):
    drawn = indicator(FixedSizeSampler(12), rng)
    assert (drawn.sum(axis=1) == 12).all()
    assert marginal_p(drawn, 0.3) > 1e-4  # the counts are a little less spread than independent ones
    pairs = (drawn.T @ drawn)[np.triu_indices(POPULATION, 1)] / DRAWS  # any two: 12/40 * 11/39
    assert np.abs(pairs - 12 / 40 * 11 / 39).max() < 5 * np.sqrt(0.0846 * 0.9154 / DRAWS)


def test_rate_one_draws_everyone_and_a_draw_repeats():
    rng = Stream.research(1)
    assert Poisson(1.0).draw(5, rng).tolist() == [0, 1, 2, 3, 4]
    assert FixedSizeSampler(5).draw(5, rng).tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(Poisson(0.5).draw(50, rng), Poisson(0.5).draw(50, rng))
    assert len(Poisson(1e-9).draw(5, rng)) == 0


def test_the_object_that_draws_is_the_one_that_is_priced():
    event = Repeated(GaussianEvent(1.0), 3)
    assert Poisson(0.2).hidden(event, 10) == Sampled(event, 0.2)
    assert Poisson(1.0).hidden(event, 10) == event
    assert FixedSizeSampler(3).hidden(event, 10) == events.FixedSize(event, 3, 10)
    assert of_records_inside(Poisson(0.2), event, 10) == Visible(event, 0.2)
    assert of_records_inside(FixedSizeSampler(3), event, 10) == Visible(event, 0.3)
    assert of_records_inside(FixedSizeSampler(10), event, 10) == event
    assert (Poisson(0.2).relation, FixedSizeSampler(3).relation) == ("add/remove", "replace")


def test_impossible_samplers_are_refused():
    for make in (lambda: Poisson(0), lambda: Poisson(1.1), lambda: FixedSizeSampler(0), lambda: FixedSizeSampler(1.5)):
        with pytest.raises(SpecError):
            make()
    with pytest.raises(SpecError, match="cannot draw 6 clients: there are 5"):
        FixedSizeSampler(6).draw(5, Stream.research(0))
