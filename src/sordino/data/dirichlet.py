"""Label skew by a Dirichlet draw: Hsu, Qi and Brown (2019), arXiv:1909.06335, Section 2.

Each client draws its own label proportions q ~ Dir(alpha p) and then records with these proportions, until all clients
have equally many. p is the frequency of each label times the number of labels, so that with balanced labels every
label has the concentration `alpha`. This is the convention of the code in use; in the text of the paper p sums to one.
Clients take turns, so that none is left with only what the others did not want. When a label has run out, the
remaining labels keep their proportions.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from sordino.core import check
from sordino.core.rng import Ints, Stream
from sordino.data.dealing import classes_of, enough

Floats = NDArray[np.float64]


def dirichlet(labels: Any, clients: int, alpha: float, rng: Stream, minimum: int = 1) -> list[Ints]:
    """Return the indices of each client's records, given the labels [n]; sizes differ by at most one."""
    check.positive(alpha=alpha)
    labels = classes_of(labels, "dirichlet")
    enough(len(labels), clients, minimum)
    values, of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    prior = alpha * len(values) * counts / len(labels)
    q = proportions(np.tile(prior, (clients, 1)), rng.at("shares"))
    order = rng.at("records").permutation(len(labels))
    pools = [order[of[order] == c].tolist() for c in range(len(values))]
    cumulative, left = _cumulative(q, counts), counts.copy()
    parts: list[list[int]] = [[] for _ in range(clients)]
    for i, u in enumerate(rng.at("labels").uniform(len(labels)).tolist()):
        client = i % clients
        ends = cumulative[client]
        c = bisect_right(ends, u * ends[-1])
        parts[client].append(pools[c].pop())
        left[c] -= 1
        if not left[c]:
            cumulative = _cumulative(q, left)
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


def _cumulative(q: Floats, left: Ints) -> list[list[float]]:
    """Return each client's cumulative proportions over the labels that are left.

    A client whose proportions of these labels are all zero gets them by their remaining counts.
    """
    some = left > 0
    if not some.any():
        return [[] for _ in q]
    open_q = np.where(some, q, 0.0)
    empty = open_q.sum(axis=1) < 1e-200
    open_q[empty] = left / left.sum()
    open_q /= open_q.sum(axis=1, keepdims=True)
    ends = np.cumsum(open_q, axis=1)
    last = int(np.flatnonzero(some)[-1])
    ends[:, last:] = np.nextafter(ends[:, last:], np.inf)  # keeps u * end below end
    rows: list[list[float]] = ends[:, : last + 1].tolist()
    return rows


def proportions(concentration: Floats, rng: Stream) -> Floats:
    """Return one Dirichlet draw for each row of concentrations [rows, k].

    Gamma variates are computed as logarithms, so that small concentrations do not underflow, by
    G(a) = G(a + 1) U^(1/a): Marsaglia and Tsang (2000), Section 6.
    """
    shape = concentration.shape
    u, v = (rng.at(name).uniform(concentration.size).reshape(shape) + 2.0**-54 for name in ("gamma", "power"))
    log = np.log(gammaincinv(concentration + 1, u)) + np.log(v) / concentration
    weights = np.exp(log - log.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)
