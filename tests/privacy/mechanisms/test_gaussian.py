import pytest
import torch
from scipy.stats import kstest, norm

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy.clip import Bounded
from sordino.privacy.events import GaussianEvent
from sordino.privacy.mechanisms.gaussian import Gaussian

BOTH = pytest.mark.parametrize("rng", [Stream.research(7), Stream(bytes(range(32)), True)], ids=["research", "secure"])


@BOTH
@pytest.mark.parametrize("bound", [1.0, 0.25])
def test_noise_has_the_promised_scale_and_no_other(rng, bound):
    rows = Bounded(torch.full((2, 10_000), 3.0), bound)
    x = (Gaussian(1.3).add(rows, rng.rows([4, 9])) - 3.0).flatten().numpy() / bound  # follows the bound
    assert kstest(x, norm(scale=1.30).cdf).pvalue > 1e-3
    assert kstest(x, norm(scale=1.43).cdf).pvalue < 1e-3  # the test can see ten per cent
    assert kstest(x, norm(scale=1.17).cdf).pvalue < 1e-3


def test_every_row_has_its_own_noise_keyed_by_its_client():
    zero, rng = torch.zeros(3, 50), Stream.research(1)
    noisy = Gaussian(1.0).add(Bounded(zero, 1.0), rng.rows([1, 2, 3]))
    assert len({row.numpy().tobytes() for row in noisy}) == 3 and not (noisy == 0).any()
    assert torch.equal(noisy[1], Gaussian(1.0).add(Bounded(zero[:1], 1.0), rng.rows([2]))[0])
    assert not zero.any()


def test_the_event_is_what_was_added():
    assert Gaussian(1.3).event() == GaussianEvent(1.3)


@pytest.mark.parametrize("z", [0, -1, float("nan"), True])
def test_no_noise_is_not_a_mechanism(z):
    with pytest.raises(SpecError, match="noise_multiplier"):
        Gaussian(z)
