import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.privacy import account, shuffle
from sordino.privacy.events import Gaussian, Pure
from sordino.privacy.mechanisms import skellam
from sordino.privacy.mechanisms.binomial import BinomialEvent
from sordino.privacy.mechanisms.skellam import SkellamEvent
from sordino.privacy.trust import Viewer, carried, viewer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("server", Viewer("server")),
        ("public", Viewer("public")),
        (" client ", Viewer("client")),
        ("server+2", Viewer("server", 2)),
        ("server + 1 client", Viewer("server", 1)),
        ("server + 12 clients", Viewer("server", 12)),
    ],
)
def test_viewers_have_names(text, found):
    assert viewer(text) == found and viewer(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", "servers", "server+", "server+-1", "public+2", "neighbour", None, 3, "server+1e9"]
)
def test_other_names_are_refused(text):
    with pytest.raises(SpecError, match="viewer must be one of"):
        viewer(text)


def test_a_secure_sum_hides_a_client_behind_the_noise_of_the_honest_ones():
    share = Gaussian(0.5)
    assert carried(share, "direct", viewer("server"), 100) == share
    assert carried(share, "secure-sum", viewer("server"), 100) == Gaussian(5.0)
    # colluders know their shares and drop-outs never added theirs
    assert carried(share, "secure-sum", viewer("server+36"), 100) == Gaussian(4.0)
    assert carried(share, "secure-sum", viewer("server+36"), 100, dropouts=48) == Gaussian(2.0)
    assert carried(share, "secure-sum", viewer("server+99"), 100, dropouts=99) == share  # its own noise stays
    costs = [account.epsilon(carried(share, "secure-sum", viewer(v), 100), 1e-5) for v in ("server", "server+36")]
    assert costs[0] < costs[1]


def test_integer_noises_that_add_up_to_their_like():
    """Checked against the laws themselves: the sum of n noises, convolved, is the noise that is priced."""
    share = SkellamEvent(3.0, 1.0, 1.0)
    assert carried(share, "secure-sum", viewer("server+2"), 6) == SkellamEvent(12.0, 1.0, 1.0)
    _, one = skellam.probabilities(3.0)
    four = np.convolve(np.convolve(one, one), np.convolve(one, one))
    k, whole = skellam.probabilities(12.0)
    middle = len(four) // 2
    np.testing.assert_allclose(four[middle - 30 : middle + 31], whole[np.abs(k) <= 30], rtol=1e-9)
    coins = BinomialEvent(40, 1, 1.0, 1.0, 1, 1e-6)
    assert carried(coins, "secure-sum", viewer("server"), 5) == BinomialEvent(200, 1, 1.0, 1.0, 1, 1e-6)


def test_noise_that_does_not_add_up_to_its_like_gains_nothing_from_a_sum():
    assert carried(Pure(1.0), "secure-sum", viewer("server"), 100) == Pure(1.0)


def test_a_shuffler_amplifies_pure_reports_only():
    hidden = carried(Pure(1.0), "shuffler", viewer("server+10"), 1000, dropouts=90)
    assert hidden == shuffle.ShuffledEvent(1.0, 900)
    assert carried(Gaussian(1.0), "shuffler", viewer("server"), 1000) == Gaussian(1.0)


@pytest.mark.parametrize("kwargs", [{"cohort": 0}, {"cohort": 10, "dropouts": 10}, {"cohort": 10, "dropouts": -1}])
def test_impossible_cohorts_are_refused(kwargs):
    with pytest.raises(SpecError):
        carried(Gaussian(1.0), "secure-sum", viewer("server"), **kwargs)
    with pytest.raises(SpecError, match="channel"):
        carried(Gaussian(1.0), "pigeon", viewer("server"), 10)
    with pytest.raises(SpecError, match="colluders"):
        carried(Gaussian(1.0), "secure-sum", viewer("server+10"), 10)
