"""Private sequence fragment puzzle: frequent words that nobody listed.  Apple Differential Privacy Team (2017),
"Learning with privacy at scale" (El Ouadrhiri and Abdelhadi, Section IV-B).

Words are padded to one length. A client sends its word through a count-mean sketch with eps, and through another one
with eps' a fragment of two letters, joined with a hash of 8 bits of the whole word; where the fragment starts is
uniform over the even positions and is sent in the clear. The server looks at all hashes and fragments, keeps the
heaviest of each position, joins those of one hash to words, and asks the first sketch for the share of each word.
Fragments of different words seldom have the same hash, so that they are not mixed up.

Level: the position does not depend on the word; given the position, the fragment is a function of the word. Both
sketches draw on their own, so that a report is (eps + eps')-DP, reached by words that differ there. The survey spends
eps on "the hash function of size 256-bit"; in the paper eps goes to the word, and the hash has 256 values.

Beyond the paper, from the reports alone and so free: a joined word must have the hash that its fragments came with,
and no letters after padding. Shares are unbiased for words that are asked for; of discovered words only those that came
out high are shown, which is a little above the truth.
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

SHORT = 256  # values of the short hash
MOST = 2**20  # words to try


class PuzzleReports(NamedTuple):
    """What n users send."""

    position: Ints  # [n]: which fragment; the first is 0
    fragment: SketchReports  # of the short hash and the fragment
    word: SketchReports


@dataclass(frozen=True)
class FragmentPuzzleEvent(Event):
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
        """The product of the two: words whose fragments differ in every position attain it."""
        a, b = (cast(Atoms, event.pair()) for event in self._both())
        losses = np.add.outer(a.losses, b.losses).ravel()
        return Atoms(losses, np.outer(a.p, b.p).ravel(), np.outer(a.q, b.q).ravel(), symmetric=True)


@dataclass(frozen=True)
class FragmentPuzzle:
    """Report a sketch of the word, and one of a random fragment of it with a short hash of the word."""

    epsilon: float  # pure level of the word's sketch; a report costs epsilon + fragment_epsilon
    fragment_epsilon: float  # pure level of the fragment's sketch
    alphabet: str = "abcdefghijklmnopqrstuvwxyz"  # the letters of words
    length: int = 10  # longest word, an even number; shorter ones are padded
    hashes: int = 64  # public hash functions of each sketch
    columns: int = 1024  # bits of a report of each sketch
    seed: int = 0  # of all hash functions; public

    def __post_init__(self) -> None:
        level(self.epsilon)
        level(self.fragment_epsilon)
        letters = self.alphabet
        if not isinstance(letters, str) or not 1 <= len(letters) <= 255 or len(set(letters)) < len(letters):
            raise SpecError(f"alphabet must be 1 to 255 different letters, not {letters!r}.")
        check.count(length=self.length)
        if self.length % 2 or self.length > 62 or self.base**self.length > ITEMS:
            raise SpecError(f"length must be even and (letters + 1)^length at most 2^63; found {self.length!r}.")
        _ = self.words, self.fragments  # the sketches check what is theirs

    @property
    def base(self) -> int:
        """Digits of a word: 0 is padding."""
        return len(self.alphabet) + 1

    @property
    def positions(self) -> int:
        return self.length // 2

    @property
    def words(self) -> CountMeanSketch:
        return CountMeanSketch(self.epsilon, self.hashes, self.columns, self.seed)

    @property
    def fragments(self) -> CountMeanSketch:
        return CountMeanSketch(self.fragment_epsilon, self.hashes, self.columns, self.seed ^ 2**62)  # other hashes

    def encode(self, words: Sequence[str]) -> Ints:
        """Words as numbers: the letters are digits, the first one the highest; fragments are digits of base^2."""
        if isinstance(words, str) or not isinstance(words, Sequence | np.ndarray) or getattr(words, "ndim", 1) != 1:
            raise DataError("words come as a list of strings.")
        digit = {letter: i + 1 for i, letter in enumerate(self.alphabet)}
        codes: dict[str, int] = {}
        for i, word in enumerate(words):
            if not isinstance(word, str) or not 0 < len(word) <= self.length or not digit.keys() >= set(word):
                raise DataError(f"row {i} is no word of 1 to {self.length} letters of the alphabet.")
            if word not in codes:
                code = 0
                for letter in word:
                    code = code * self.base + digit[letter]
                codes[word] = code * self.base ** (self.length - len(word))
        return np.array([codes[word] for word in words], dtype=np.int64)

    def decode(self, code: int) -> str:
        """The word of a number; empty if it is none: letters after padding."""
        digits = [code // self.base**i % self.base for i in reversed(range(self.length))]
        word = "".join(self.alphabet[d - 1] for d in digits if d)
        return word if not any(digits[len(word) :]) else ""

    def short(self, codes: Ints) -> Ints:
        """The hash of 8 bits: one more hash function of the words."""
        return hashed(codes, np.array([self.hashes]), SHORT, self.seed)

    def piece(self, codes: Ints, position: Ints) -> Ints:
        """The item of the fragments' sketch: the short hash, then the fragment."""
        power = np.array([self.base ** (self.length - 2 - 2 * i) for i in range(self.positions)], dtype=np.int64)
        return np.asarray(self.short(codes) * self.base**2 + codes // power[position] % self.base**2)

    def randomize(self, values: Sequence[str], rng: RowStream) -> PuzzleReports:
        codes = self.encode(values)
        if len(codes) != len(rng.ids):
            raise DataError(f"{len(rng.ids)} clients need one word each; found {len(codes)}.")
        position = (rng.at("position").words(1)[:, 0] % np.uint64(self.positions)).astype(np.int64)
        fragment = self.fragments.randomize(self.piece(codes, position), rng.at("fragment"))
        return PuzzleReports(position, fragment, self.words.randomize(codes, rng.at("word")))

    def probabilities(self, word: str, position: int, rows: tuple[int, int] = (0, 0)) -> tuple[Floats, Floats]:
        """That each bit is 1, of the fragment's and of the word's sketch, given position and hash functions."""
        code = self.encode([word])
        where = categories([position], self.positions)
        fragment = self.fragments.probabilities(int(self.piece(code, where)[0]), rows[0])
        return fragment, self.words.probabilities(int(code[0]), rows[1])

    def estimate(self, reports: PuzzleReports, words: Sequence[str]) -> Floats:
        """The share of each word; unbiased over the hash functions."""
        return self.words.estimate(reports.word, self.encode(words))

    def fragment_shares(self, reports: PuzzleReports, position: int) -> Floats:
        """The share of every short hash and fragment at a position [256, base^2]; unbiased over the hash functions.

        What `self.fragments.estimate` says of all items, for all at once.
        """
        here = categories(reports.position, self.positions) == categories([position], self.positions)[0]
        row, bits = categories(reports.fragment.row, self.hashes), bit_rows(reports.fragment.bits, self.columns)
        if not len(here) == len(row) == len(bits) or not here.any():
            raise DataError(f"every report needs its parts, and position {position} some reports.")
        row, bits = row[here], bits[here]
        sketch, items = self.fragments, np.arange(SHORT * self.base**2)
        count = np.bincount(row, minlength=self.hashes)[:, None]
        sums = sum_rows(bits, row, self.hashes) - count * float(expit(-self.fragment_epsilon / 2))
        found = np.zeros(len(items))
        for r in range(self.hashes):
            found += sums[r, hashed(items, np.array([r]), self.columns, sketch.seed)]
        m, shares = self.columns, found / math.tanh(self.fragment_epsilon / 4) / len(row)
        return np.asarray(m / (m - 1) * (shares - 1 / m)).reshape(SHORT, -1)

    def discover(self, reports: PuzzleReports, share: float, heaviest: int = 20) -> dict[str, float]:
        """Words that at least that share of the users has, the most frequent first, with their shares.

        `heaviest` (T in the paper): how many hashed fragments of each position are tried. Words below about four
        standard deviations of `variance` cannot be told from noise: choose `share` above.
        """
        check.probability(share=share)
        check.count(heaviest=heaviest)
        pieces = []  # of each position: short hash, fragment
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
        found = dict(zip(words, self.estimate(reports, words).tolist(), strict=True))
        return {word: found[word] for word in sorted(found, key=lambda w: -found[w]) if found[word] >= share}

    def variance(self, frequency: float = 0.0, n: int = 1, others: float = 0.0) -> float:
        """Of the share of a word that is asked for; `others`: the sum of the squared shares of all other words."""
        return self.words.variance(frequency, n, others)

    def event(self) -> Event:
        return FragmentPuzzleEvent(self.epsilon, self.fragment_epsilon)
