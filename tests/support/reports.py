"""What tests of local randomizers share: many rows quickly, exact levels, laws of bits, a chi-square."""

import math
from itertools import product

import numpy as np
from numpy.testing import assert_allclose
from scipy.stats import chisquare

from sordino.core.rng import RowStream, Stream

N = 400_000


class Bulk(RowStream):
    """Many rows from one keystream, for tests of a law: one key a client takes 9 microseconds a row."""

    def at(self, *path):
        return Bulk(self.stream.at(*path), self.ids)

    def words(self, n):
        return self.stream.words(n * len(self.ids)).reshape(len(self.ids), n)


def bulk(n=N, seed=5):
    return Bulk(Stream.research(seed), np.arange(n))


def audit(laws):
    """The exact level of a table of laws [inputs, outputs]: the largest log ratio over outputs and pairs of inputs."""
    laws = np.asarray(laws)
    assert_allclose(laws.sum(axis=1), 1, rtol=1e-12)  # distributions
    laws = laws[:, laws.max(axis=0) > 0]
    return math.inf if (laws == 0).any() else float(np.log(laws.max(axis=0) / laws.min(axis=0)).max())


def joint(ones):
    """The law of independent bits over all 2^m outcomes, from the chance of each bit to be 1."""
    return np.array([np.prod(np.where(bits, ones, 1 - ones)) for bits in product([0, 1], repeat=len(ones))])


def number(bits):
    return bits.astype(np.int64) @ (1 << np.arange(bits.shape[1])[::-1])


def fits(seen, law, least=1e-3):
    return chisquare(np.bincount(seen, minlength=len(law)), law * len(seen)).pvalue > least
