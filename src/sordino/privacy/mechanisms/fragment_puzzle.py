"""Private sequence fragment puzzle: discovers frequent words without a list of candidates.  Apple Differential Privacy
Team (2017), "Learning with privacy at scale" (El Ouadrhiri and Abdelhadi, Section IV-B).

Words are padded to one length. A client sends its word through a count-mean sketch with eps. Through another sketch
with eps' it sends a fragment of two letters, combined with an 8-bit hash of the whole word; the start of the fragment
is uniform over the even positions and is sent in the clear. The server examines all hashes and fragments, keeps the
heaviest ones of each position, joins those with the same hash into words, and queries the first sketch for the
frequency of each word. Fragments of different words seldom have the same hash, so they are not mixed up.

Epsilon: the position does not depend on the word; given the position, the fragment is a function of the word. Both
sketches draw independently, so a report is (eps + eps')-DP, attained by words that differ at that position. The survey
spends eps on "the hash function of size 256-bit"; in the paper eps goes to the word, and the hash has 256 values.

Beyond the paper, and free of cost because it uses the reports alone: a joined word must have the hash that its
fragments were sent with, and no letters after padding. Frequencies are unbiased for words that are asked for; of
discovered words only those with a high estimate are shown, which biases these estimates slightly upwards.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import numpy as np
from scipy.special import expit

from sordino.core import check
from sordino.core.errors import DataError, SpecError
from sordino.core.rng import RowStream
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.count_mean_sketch import (
    ITEMS,
    CountMeanSketch,
    CountMeanSketchEvent,
    SketchReports,
    hashed,
    sum_rows,
)
from sordino.privacy.mechanisms.randomized_response import Floats, Ints, categories, level
from sordino.privacy.mechanisms.unary_encoding import bit_rows
from sordino.privacy.pairs import Atoms, Pair

__all__ = ["FragmentPuzzle"]

SHORT = 256  # number of values of the short hash
MOST = 2**20  # maximum number of candidate words


class PuzzleReports(NamedTuple):
    """Reports of n users."""

    position: Ints  # [n]: index of the fragment, from 0
    fragment: SketchReports  # sketch of the short hash and the fragment
    word: SketchReports


@dataclass(frozen=True)
class FragmentPuzzleEvent(Event):
    """One report: a sketch of the word and a sketch of a fragment."""

    replaces: ClassVar[bool] = True
    epsilon: float
    fragment_epsilon: float

    def __post_init__(self) -> None:
        level(self.epsilon)
        level(self.fragment_epsilon)

    def _both(self) -> tuple[CountMeanSketchEvent, CountMeanSketchEvent]:
        return CountMeanSketchEvent(self.epsilon), CountMeanSketchEvent(self.fragment_epsilon)

    def pure(self) -> float:
        return self.epsilon + self.fragment_epsilon

    def rho(self) -> float:
        return sum(event.rho() for event in self._both())

    def renyi(self, orders: Floats) -> Floats:
        word, fragment = self._both()
        return word.renyi(orders) + fragment.renyi(orders)

    def pair(self) -> Pair:
        """Return the product of the pairs of both sketches.

        Words whose fragments differ in every position attain it.
        """
        a, b = (cast(Atoms, event.pair()) for event in self._both())
        losses = np.add.outer(a.losses, b.losses).ravel()
        return Atoms(losses, np.outer(a.p, b.p).ravel(), np.outer(a.q, b.q).ravel(), symmetric=True)


@dataclass(frozen=True)
class FragmentPuzzle:
    """Report a sketch of the word, and a sketch of a random fragment of it together with a short hash of the word."""

    epsilon: float  # epsilon of the word's sketch (pure DP); a report costs epsilon + fragment_epsilon
    fragment_epsilon: float  # epsilon of the fragment's sketch (pure DP)
    alphabet: str = "abcdefghijklmnopqrstuvwxyz"  # letters that words are made of
    length: int = 10  # maximum length of a word, even; shorter words are padded
    hashes: int = 64  # number of public hash functions of each sketch
    columns: int = 1024  # number of bits in a report of each sketch
    seed: int = 0  # public seed of all hash functions

    geometry: ClassVar[str] = "one value a report"
    exact: ClassVar[bool] = True
    calibrated: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        level(self.epsilon)
        level(self.fragment_epsilon)
        letters = self.alphabet
        if not isinstance(letters, str) or not 1 <= len(letters) <= 255 or len(set(letters)) < len(letters):
            raise SpecError(f"alphabet must be 1 to 255 different letters, not {letters!r}.")
        check.count(length=self.length)
        if self.length % 2 or self.length > 62 or self.base**self.length > ITEMS:
            raise SpecError(f"length must be even and (letters + 1)^length at most 2^63; found {self.length!r}.")
        _ = self.words, self.fragments  # the sketches check their own parameters

    @property
    def base(self) -> int:
        """The base in which words are written as numbers; the digit 0 is padding."""
        return len(self.alphabet) + 1

    @property
    def positions(self) -> int:
        """The number of fragments of a word."""
        return self.length // 2

    @property
    def words(self) -> CountMeanSketch:
        """The sketch of the words."""
        return CountMeanSketch(self.epsilon, self.hashes, self.columns, self.seed)

    @property
    def fragments(self) -> CountMeanSketch:
        """The sketch of the fragments; its hash functions differ from those of `words`."""
        return CountMeanSketch(self.fragment_epsilon, self.hashes, self.columns, self.seed ^ 2**62)

    def encode(self, words: Sequence[str]) -> Ints:
        """Return words as numbers in base `base`.

        The letters are digits, the first one the most significant; fragments are digits in base^2.
        """
        if isinstance(words, str) or not isinstance(words, Sequence | np.ndarray) or getattr(words, "ndim", 1) != 1:
            raise DataError("words must be a list of strings.")
        digit = {letter: i + 1 for i, letter in enumerate(self.alphabet)}
        codes: dict[str, int] = {}
        for i, word in enumerate(words):
            if not isinstance(word, str) or not 0 < len(word) <= self.length or not digit.keys() >= set(word):
                raise DataError(f"row {i} is not a word of 1 to {self.length} letters of the alphabet.")
            if word not in codes:
                code = 0
                for letter in word:
                    code = code * self.base + digit[letter]
                codes[word] = code * self.base ** (self.length - len(word))
        return np.array([codes[word] for word in words], dtype=np.int64)

    def decode(self, code: int) -> str:
        """Return the word of a number; empty if there is none because letters follow padding."""
        digits = [code // self.base**i % self.base for i in reversed(range(self.length))]
        word = "".join(self.alphabet[d - 1] for d in digits if d)
        return word if not any(digits[len(word) :]) else ""

    def short(self, codes: Ints) -> Ints:
        """Return the 8-bit hash of each word, computed by one more hash function."""
        return hashed(codes, np.array([self.hashes]), SHORT, self.seed)

    def piece(self, codes: Ints, position: Ints) -> Ints:
        """Return the item for the fragments' sketch: the short hash followed by the fragment."""
        power = np.array([self.base ** (self.length - 2 - 2 * i) for i in range(self.positions)], dtype=np.int64)
        return np.asarray(self.short(codes) * self.base**2 + codes // power[position] % self.base**2)

    def randomize(self, values: Sequence[str], rng: RowStream) -> PuzzleReports:
        """Return one report for each word."""
        codes = self.encode(values)
        if len(codes) != len(rng.ids):
            raise DataError(f"{len(rng.ids)} clients need one word each; found {len(codes)}.")
        position = (rng.at("position").words(1)[:, 0] % np.uint64(self.positions)).astype(np.int64)
        fragment = self.fragments.randomize(self.piece(codes, position), rng.at("fragment"))
        return PuzzleReports(position, fragment, self.words.randomize(codes, rng.at("word")))

    def probabilities(self, word: str, position: int, rows: tuple[int, int] = (0, 0)) -> tuple[Floats, Floats]:
        """Return the probability that each bit is 1, for the fragment's and for the word's sketch.

        Both are given the position and the hash functions (`rows`).
        """
        code = self.encode([word])
        where = categories([position], self.positions)
        fragment = self.fragments.probabilities(int(self.piece(code, where)[0]), rows[0])
        return fragment, self.words.probabilities(int(code[0]), rows[1])

    def estimate(self, reports: PuzzleReports, words: Sequence[str]) -> Floats:
        """Return the estimated frequency of each word, unbiased over the hash functions."""
        return self.words.estimate(reports.word, self.encode(words))

    def fragment_shares(self, reports: PuzzleReports, position: int) -> Floats:
        """Return the frequency of every short hash and fragment at a position [256, base^2], unbiased over the hash
        functions.

        The result equals `self.fragments.estimate` for all items, computed at once.
        """
        here = categories(reports.position, self.positions) == categories([position], self.positions)[0]
        row, bits = categories(reports.fragment.row, self.hashes), bit_rows(reports.fragment.bits, self.columns)
        if not len(here) == len(row) == len(bits) or not here.any():
            raise DataError(f"every report needs its parts, and position {position} needs some reports.")
        row, bits = row[here], bits[here]
        sketch, items = self.fragments, np.arange(SHORT * self.base**2)
        count = np.bincount(row, minlength=self.hashes)[:, None]
        sums = sum_rows(bits, row, self.hashes) - count * float(expit(-self.fragment_epsilon / 2))
        totals = np.zeros(len(items))
        for r in range(self.hashes):
            totals += sums[r, hashed(items, np.array([r]), self.columns, sketch.seed)]
        m, shares = self.columns, totals / math.tanh(self.fragment_epsilon / 4) / len(row)
        return np.asarray(m / (m - 1) * (shares - 1 / m)).reshape(SHORT, -1)

    def discover(self, reports: PuzzleReports, share: float, heaviest: int = 20) -> dict[str, float]:
        """Return the words that at least the fraction `share` of the users holds, with their frequencies, in decreasing
        order.

        Args:
            reports: the users' reports.
            share: smallest frequency to return. Words below about four standard deviations of `variance` cannot be
                distinguished from noise, so choose a larger value.
            heaviest: number of hashed fragments to try per position (T in the paper).
        """
        check.probability(share=share)
        check.count(heaviest=heaviest)
        pieces = []  # per position: short hashes and fragments
        for position in range(self.positions):
            shares = self.fragment_shares(reports, position).ravel()
            top = np.sort(np.argsort(-shares, kind="stable")[:heaviest])
            pieces.append(np.divmod(top, self.base**2))
        tries = np.prod([np.bincount(hashes, minlength=SHORT).astype(float) for hashes, _ in pieces], axis=0)
        if tries.sum() > MOST:
            raise DataError(f"the fragments can be joined to more than {MOST} words; use a smaller heaviest.")
        words: list[str] = []
        for short in np.flatnonzero(tries):
            codes = np.zeros(1, dtype=np.int64)
            for hashes, fragments in pieces:
                codes = np.add.outer(codes * self.base**2, fragments[hashes == short]).ravel()
            words += [word for word in map(self.decode, codes[self.short(codes) == short].tolist()) if word]
        if not words:
            return {}
        frequencies = dict(zip(words, self.estimate(reports, words).tolist(), strict=True))
        in_order = sorted(frequencies.items(), key=lambda item: -item[1])
        return {word: frequency for word, frequency in in_order if frequency >= share}

    def variance(self, frequency: float = 0.0, n: int = 1, others: float = 0.0) -> float:
        """Return the variance of the estimated frequency of a word that is asked for.

        `others` is the sum of the squared frequencies of all other words.
        """
        return self.words.variance(frequency, n, others)

    def event(self) -> Event:
        """Return the event of one report."""
        return FragmentPuzzleEvent(self.epsilon, self.fragment_epsilon)
