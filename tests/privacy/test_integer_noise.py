"""Tables against references of 60 decimal digits, draws against their laws, and the path that no draw ever takes."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.privacy import integer_noise
from sordino.privacy.integer_noise import BITS, InversionTable, exp_minus
from sordino.privacy.mechanisms.binomial import Binomial
from sordino.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from sordino.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from sordino.privacy.mechanisms.skellam import Skellam
from sordino.privacy.quantise import Bounds
from support.integer_laws import chi_square as p_value

UNIT = Bounds(dim=1, l1=1, l2_squared=1, linf=1)


def decimal(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)


def gaussian(scale: float, k: int) -> Decimal:
    return (-Decimal(k * k) / (2 * Decimal(scale) ** 2)).exp()


def laplace(epsilon: float, k: int) -> Decimal:
    return (-abs(k) * Decimal(epsilon)).exp()


def skellam(scale: float, k: int) -> Decimal:
    """I_k(mu), by its series."""
    half, total, j = Decimal(scale) ** 2 / 2, Decimal(0), 0
    term = half ** abs(k) / math.factorial(abs(k))
    while term > total * Decimal(10) ** -70:
        total += term
        j += 1
        term *= half * half / (j * (j + abs(k)))
    return total


def binomial(scale: float, k: int) -> Decimal:
    trials = 2 * math.ceil(2 * Fraction(scale) ** 2)
    return Decimal(math.comb(trials, trials // 2 + k)) if 2 * abs(k) <= trials else Decimal(0)


LAWS = {
    "discrete gaussian": (lambda s: DiscreteGaussian(s).table(UNIT), gaussian),
    "discrete laplace": (lambda s: DiscreteLaplace(1 / s).table(UNIT), lambda s, k: laplace(1 / s, k)),
    "skellam": (lambda s: Skellam(s).table(UNIT), skellam),
    "binomial": (lambda s: Binomial(s).table(UNIT), binomial),
}
EVERY = pytest.mark.parametrize("law", LAWS)


@pytest.mark.parametrize(
    "x", [Fraction(0), Fraction(1, 10**9), Fraction(1, 3), Fraction(7, 2), Fraction(150), Fraction(99999)]
)
def test_the_exponential_has_seventy_digits(x):
    with localcontext() as context:
        context.prec = 120
        assert abs(Decimal(exp_minus(x)) / 2**BITS - (-decimal(x)).exp()) < Decimal(10) ** -73


@EVERY
@pytest.mark.parametrize("scale", [0.3, 1.0, 5.25, 20.0])
def test_a_table_is_the_law_to_thirty_eight_digits(law, scale):
    make, reference = LAWS[law]
    outcomes, mass = make(scale).probabilities()
    assert sum(mass) == 1 and mass == mass[::-1] and outcomes == [-k for k in outcomes[::-1]]
    with localcontext() as context:
        context.prec = 100
        wide = range(2 * outcomes[0] - 50, 2 * outcomes[-1] + 51)
        weights = [reference(scale, k) for k in wide]
        total = sum(weights)
        right = dict(zip(wide, (w / total for w in weights), strict=True))
        off = [decimal(m) - right.pop(k) for k, m in zip(outcomes, mass, strict=True)]
        assert max(map(abs, off)) < Decimal(10) ** -38
        apart = (sum(map(abs, off)) + sum(right.values())) / 2
        assert apart <= Decimal(make(scale).distance) < Decimal(10) ** -33


@EVERY
@pytest.mark.parametrize("scale", [4.0, 40.0])
@pytest.mark.parametrize("secure", [False, True], ids=["research", "secure"])
def test_draws_follow_their_law_and_no_other(law, scale, secure):
    make, _ = LAWS[law]

    def floats(s: float) -> tuple[np.ndarray, np.ndarray]:
        outcomes, mass = make(s).probabilities()
        return np.array(outcomes), np.array([float(m) for m in mass])

    x = make(scale).draw(Stream(bytes(range(32)), secure).rows([4, 9]), 150_000).flatten()
    assert p_value(x, *floats(scale)) > 1e-3
    assert p_value(x, *floats(1.05 * scale)) < 1e-3  # the test can see five per cent
    assert p_value(x, *floats(scale / 1.05)) < 1e-3
    assert p_value(x + 1, *floats(scale)) < 1e-3  # and a shift by one
    assert p_value(x, *floats(scale / 2)) < 1e-3  # half the noise


def test_row_and_threads_and_length_do_not_matter(monkeypatch):
    table, rng, n = DiscreteGaussian(3.0).table(UNIT), Stream.research(3), 3 * integer_noise.BLOCK + 17
    both = table.draw(rng.rows([5, 8]), n)
    assert np.array_equal(both[1:], table.draw(rng.rows([8]), n)) and not np.array_equal(both[0], both[1])
    assert np.array_equal(both[:, :1000], table.draw(rng.rows([5, 8]), 1000))
    assert not np.array_equal(
        both[0, :1000], both[0, integer_noise.BLOCK : integer_noise.BLOCK + 1000]
    )  # blocks differ
    monkeypatch.setattr(integer_noise, "THREADS", 1)
    assert np.array_equal(both, table.draw(rng.rows([5, 8]), n))
    assert table.draw(rng.rows([]), 5).shape == (0, 5) and table.draw(rng.rows([1]), 0).shape == (1, 0)


def test_a_tie_is_settled_by_a_second_word():
    """Thresholds whose upper halves are words that will be drawn: every draw is a tie."""
    rng, n = Stream.research(11).rows([6]), 2000
    words = rng.stream.at("block", 0).words(n, 6)
    upper = np.repeat(np.sort(words), 3)  # three thresholds to a word
    lower = np.tile(np.array([2**62, 2**63, 3 * 2**62], dtype=np.uint64), n)
    table = InversionTable(-7, upper, lower)
    x = table.draw(rng, n)[0]
    above = x + 7 - np.searchsorted(upper, words, side="left")
    assert above.min() == 0 and above.max() == 3
    assert (np.abs(np.bincount(above, minlength=4) - n / 4) < 5 * math.sqrt(n * 3 / 16)).all()  # a quarter each
    cuts = [(int(h) << 64) + int(v) for h, v in zip(upper, lower, strict=True)]
    for at in range(0, n, 37):  # the definition, with whole numbers
        second = int(rng.stream.at("block", 0).at("tie", at).words(1, 6)[0])
        drawn = (int(words[at]) << 64) + second
        assert x[at] == -7 + sum(cut <= drawn for cut in cuts)


def test_the_ends_of_a_table_are_reached():
    """The largest and the smallest word, which the keystream will not show."""
    table = DiscreteGaussian(1.0).table(UNIT)

    class Fixed:
        def __init__(self, word: int) -> None:
            self.word = word

        def words(self, n: int, row: int) -> np.ndarray:
            return np.full(n, self.word, dtype=np.uint64)

        def at(self, *path: object) -> "Fixed":
            return self

    for word, end in ((0, -1), (2**64 - 1, 1)):
        out = np.zeros(3, dtype=np.int64)
        table._invert(Fixed(word), 0, out)
        assert (out == end * -table.lowest).all() and abs(out[0]) == 13


def test_almost_no_noise_is_a_table_of_one_integer():
    assert not DiscreteGaussian(1e-3).table(UNIT).draw(Stream.research(0).rows([1]), 50).any()


@pytest.mark.parametrize("scale", [1e6, 1e30, 1e200])
@EVERY
def test_noise_too_wide_for_a_table_is_refused(law, scale):
    with pytest.raises(SpecError, match="coarser lattice"):
        LAWS[law][0](scale)
