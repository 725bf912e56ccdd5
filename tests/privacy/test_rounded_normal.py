"""Draws against the exact law, the float path against a slow reference, and the path that few draws take."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import chi2, kstest, norm

from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream
from sordino.privacy import rounded_normal
from sordino.privacy.rounded_normal import BLOCK, Bits, _Workspace, blocks, settle, signed

RNG = Stream(bytes(range(32)), True)
CONTEXT = _Workspace().context


class Given:
    """Further bits that a test chooses; refuses to give more."""

    def __init__(self, *pairs: tuple[int, int]) -> None:
        self.pairs = pairs

    def words(self, level: int) -> tuple[int, int]:
        return self.pairs[level]


def draw(rng: RowStream, n: int, scale: float | np.ndarray) -> np.ndarray:
    """All blocks as one array of integers [clients, n]."""
    out = np.empty((len(rng.ids), n), dtype=np.int64)

    def put(rows: slice, columns: slice, noise: torch.Tensor, room: torch.Tensor) -> None:
        out[rows, columns] = noise.numpy()

    blocks(rng, n, scale, put)
    return out


def mass(scale: float, k: np.ndarray) -> np.ndarray:
    """P(k), from the side on which no digits are lost."""
    k = np.abs(k)
    return ndtr(-(k - 0.5) / scale) - ndtr(-(k + 0.5) / scale)


def p_value(x: np.ndarray, scale: float) -> float:
    """Chi-square against the exact probabilities, with the rare outcomes of either side taken together."""
    k = np.arange(-math.ceil(9 * scale), math.ceil(9 * scale) + 1)
    often = k[mass(scale, k) * len(x) > 20]
    low, high = often[0], often[-1]
    seen = np.bincount(np.clip(x, low, high) - low, minlength=high - low + 1)
    expected = mass(scale, np.arange(low, high + 1))
    expected[0] = expected[-1] = ndtr((low + 0.5) / scale)
    assert expected.sum() == pytest.approx(1, abs=1e-9)
    return float(chi2.sf(((seen - len(x) * expected) ** 2 / (len(x) * expected)).sum(), high - low))


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5, 30.0, 300.0])
def test_draws_have_the_exact_probabilities_and_no_others(scale):
    x = draw(RNG.at("law").rows([4, 9]), 200_000, scale).flatten()
    assert p_value(x, scale) > 1e-3
    assert p_value(x, 1.02 * scale) < 1e-3 and p_value(x, scale / 1.02) < 1e-3  # the test can see two per cent


@pytest.mark.parametrize(("scale", "n"), [(1e5, 100_000), (3.3e5, 100_000), (1e7, 100_000), (1e9, 8_000)])
def test_wide_draws_are_normal_of_that_scale_and_no_other(scale, n):
    x = draw(RNG.at("wide").rows([2, 3]), n, scale).flatten() / scale
    assert kstest(x, norm.cdf).pvalue > 1e-3
    assert kstest(x, norm(scale=1.1).cdf).pvalue < 1e-3
    squares = (x * x).sum()
    assert 1e-3 < chi2.sf(squares, len(x)) < 1 - 1e-3
    for wrong in (1.02, 1 / 1.02) if n == 100_000 else (1.05, 1 / 1.05):  # what so many can see
        assert not 1e-3 < chi2.sf(squares / wrong**2, len(x)) < 1 - 1e-3


def test_last_digits_are_uniform():
    """A wide law is flat over a few steps; a float that was scaled up would not be."""
    digits = np.bincount(draw(RNG.at("digits").rows([1]), 160_000, 1e6)[0] % 64, minlength=64)
    assert chi2.sf(((digits - 2500) ** 2 / 2500).sum(), 63) > 1e-3


def test_neighbours_and_rows_are_independent():
    x = draw(RNG.rows([1, 2]), 100_000, 1e5) / 1e5
    half = x.shape[1] // 2
    pairs = {"rows": (x[0], x[1]), "next": (x[0, 1:], x[0, :-1]), "sine": (x[0, : half // 2], x[0, half // 2 : half])}
    for name, (a, b) in pairs.items():
        for f, g in ((a, b), (a * a, b * b), (np.abs(a), b)):
            assert abs(np.corrcoef(f, g)[0, 1]) < 4.5 / math.sqrt(len(a)), name


def reference(words: np.ndarray, scale: float) -> list[tuple[int, int]]:
    """Every pair by mpmath with 60 digits, in the middle of what the words leave open."""
    half, out = len(words) // 2, []
    with mpmath.workdps(60):
        for a, b in zip(words[:half].tolist(), words[half:].tolist(), strict=True):
            u = (mpmath.mpf(a >> 1) + 0.5) / 2**63
            angle = 2 * mpmath.pi * (mpmath.mpf(b) + 0.5) / 2**64
            radius = scale * mpmath.sqrt(-2 * mpmath.log(u))
            out.append(tuple(int(mpmath.nint(radius * f(angle))) for f in (mpmath.cos, mpmath.sin)))
    return out


@pytest.mark.parametrize("scale", [0.7, 12.5, 3.3e5, 2.0**35])
@pytest.mark.parametrize("error", [None, "all"])
def test_floats_and_intervals_agree_with_a_slow_reference(scale, error, monkeypatch):
    """`all`: every pair is computed again, as if floats had no digits."""
    calls = []

    def counted(*args):
        calls.append(args)
        return settle(*args)

    monkeypatch.setattr(rounded_normal, "settle", counted)
    if error == "all":
        monkeypatch.setattr(rounded_normal, "ERROR", 0.5 / scale)
    n = 600
    expected = reference(RNG.words(n, 5), scale)
    found = draw(RNG.rows([5]), n, scale)[0]
    assert found.tolist() == [a for a, _ in expected] + [b for _, b in expected]
    assert len(calls) == n // 2 if error == "all" else len(calls) < (n if scale > 1e9 else 3)


@pytest.mark.parametrize(("scale", "least", "most"), [(3.3e5, 0, 10), (1e7, 15, 70)])
def test_few_numbers_are_computed_again(scale, least, most, monkeypatch):
    """Of a million 2 s ERROR, and 0.4 for their radius."""
    calls = []
    monkeypatch.setattr(rounded_normal, "settle", lambda *args: calls.append(args) or settle(*args))
    draw(RNG.at("few").rows(range(8)), 125_000, scale)
    assert least <= len(calls) < most


def test_the_float_path_stays_within_half_of_the_error_it_allows():
    """How far float64 is from the truth, on words chosen to be hard: small, large and next to quarters of a turn."""
    rng = np.random.default_rng(0)
    first = np.concatenate([
        rng.integers(2**41, 2**63, 400, dtype=np.uint64), 2**63 - rng.integers(2**43, 2**48, 100, dtype=np.uint64),
        rng.integers(2**41, 2**43, 100, dtype=np.uint64),
    ]).astype(np.int64)  # fmt: skip
    turns = np.array([-(2**63), -(2**62), 0, 2**62, 2**63 - 1], dtype=np.int64)
    second = np.concatenate(
        [rng.integers(-(2**63), 2**63, 400), turns[rng.integers(0, 5, 200)] ^ rng.integers(0, 2**12, 200)]
    )
    radius = np.sqrt(-2 * np.log(first * 2.0**-63))
    angle = torch.from_numpy(second * rounded_normal.TURN)
    floats = np.stack([radius * angle.cos().numpy(), radius * angle.sin().numpy()])
    inside = (radius >= rounded_normal.LEAST) & (radius <= rounded_normal.MOST)
    assert inside.sum() > 550
    with mpmath.workdps(60):
        for i in np.flatnonzero(inside):
            for low in (0, 1):  # both ends of what is not read
                u, turn = mpmath.mpf(int(first[i]) + low) / 2**63, mpmath.mpf(int(second[i]) + low) / 2**64
                r = mpmath.sqrt(-2 * mpmath.log(u)) if u < 1 else mpmath.mpf(0)
                truth = (r * mpmath.cos(2 * mpmath.pi * turn), r * mpmath.sin(2 * mpmath.pi * turn))
                assert max(abs(truth[0] - floats[0, i]), abs(truth[1] - floats[1, i])) < rounded_normal.ERROR / 2


def test_words_of_zeros_and_ones_ask_for_further_bits():
    ones = 2**64 - 1
    # u begins with 63 zeros, then 2^-64: radius sqrt(2 * 127 * ln 2) with the next 63 zeros; angle 0
    radius = math.sqrt(2 * 127 * math.log(2))
    assert settle(0, 0, 1e6, Given((1, 0), (0, 0), (0, 0)), CONTEXT) == (round(1e6 * radius), 0)
    # u is 1 but for the last bit of 127: radius 2^-63 and a little, far below a step
    assert settle(2**63 - 1, 12345, 1e6, Given((ones, 7)), CONTEXT) == (0, 0)
    # an angle of just below a half and just above minus a half turn: both are the same direction
    for angle in (2**63 - 1, -(2**63)):
        k = settle(2**62, angle, 1e3, Given(), CONTEXT)
        assert k == (round(-1e3 * math.sqrt(2 * math.log(2))), 0)
    assert settle(5, 5, 0.0, Given(), CONTEXT) == (0, 0)


def test_a_half_integer_is_decided_by_bits_not_read_yet():
    """Angle 0 and a scale for which what is open of u straddles 1000.5: the next word tells on which side it is."""
    first = 2**30
    with mpmath.workdps(60):
        scale = float(1000.5 / mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(first) + 0.5) / 2**63)))
        change = mpmath.exp(-((mpmath.mpf(1000.5) / scale) ** 2) / 2) * 2**63 - first  # between the two sides
        assert 0.4 < change < 0.6
        word, rest = divmod(int(change * 2**128), 2**64)
    for bits, expected in ((0, 1001), (word - 2**40, 1001), (word + 2**40, 1000), (2**64 - 1, 1000)):
        assert settle(first, 0, scale, Given((bits, 0)), CONTEXT) == (expected, 0)
    for more, expected in (
        (rest // 2, 1001),
        (rest + (2**64 - rest) // 2, 1000),
    ):  # and if that is not enough, the next
        assert settle(first, 0, scale, Given((word, 0), (more, 0)), CONTEXT) == (expected, 0)


def test_further_bits_are_keyed_by_row_and_place():
    stream = RNG.at("further bits", 3)
    assert Bits(stream, 1).words(0) != Bits(stream, 1).words(1)
    assert Bits(stream, 1).words(0) != Bits(stream, 2).words(0) != Bits(RNG.at("further bits", 4), 2).words(0)
    assert signed(2**64 - 1) == -1 and signed(2**63 - 1) == 2**63 - 1 and signed(2**63) == -(2**63)


@pytest.mark.parametrize("n", [1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_a_row_depends_on_its_client_alone(n):
    together, alone = draw(RNG.rows([7, 8, 9]), n, 1e4), draw(RNG.rows([8]), n, 1e4)
    assert together.shape == (3, n) and (together[1] == alone[0]).all() and (n < 7 or len(set(together[0])) > 1)
    assert (draw(RNG.rows([8, 8]), n, np.array([1e4, 1e4])) == alone).all()


def test_every_row_has_its_own_scale():
    x = draw(RNG.rows([1, 2, 3]), 20_000, np.array([0.0, 10.0, 1e6]))
    assert not x[0].any() and x[1].std() == pytest.approx(10, rel=0.03) and x[2].std() == pytest.approx(1e6, rel=0.03)


def test_nothing_is_drawn_for_nobody():
    assert draw(RNG.rows([]), 5, 1.0).shape == (0, 5) and draw(RNG.rows([1]), 0, 1.0).shape == (1, 0)


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf, 2.0**37])
def test_scales_that_cannot_be_drawn_are_refused(scale):
    with pytest.raises(SpecError, match="lattice steps wide"):
        blocks(RNG.rows([1]), 4, scale, lambda *args: None)
