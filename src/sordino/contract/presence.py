"""Clients that join later, fail, answer late or do less: by a public law that knows nothing of their data.

- Drop-out: a drawn client never answers, with its own public probability between `dropout[0]` and `dropout[1]`. Those
  who often fail would be heard too seldom, so an answer counts (1 - highest) / (1 - own): nobody counts more than once,
  the clip still bounds every message, and the mean is unbiased as long as failing is independent of the data.
- Late: an answer arrives one round later, with probability `late`, unless its client has answered in time by then: two
  messages of one client in one sum would double its sensitivity.
- Slow: with probability `slow` a client does a part of its local steps, every number equally likely.
- Joining: the share `joining[0]` of the clients, the last ones, is there after `joining[1]` rounds only. Before that
  whoever of them is drawn falls away, pays nothing and is not expected. Draws and rates stay as they are, also of fixed
  sizes: cohorts are drawn among all clients and are smaller before the others join. So a client costs what it did, in
  fewer rounds, and the price of those who are there from the start holds for all. (Where messages weigh by records,
  weights stay relative to the mean of all clients; if those who join are larger, earlier steps are shorter by that.)

Everyone who is drawn, and there, pays, heard or not. Sums are divided by what is expected to arrive, never by what did.
Noise and epsilon hold whatever the stragglers do; only the claim of no bias needs the assumption (and late = 0: where
answers may be late, reliable clients lose a few more of theirs).

Late answers leave the amplification by Poisson draws as it is. Whatever was seen before, a client's row is in a
round's sum with probability at most the rate q: rounds without the client look the same whether it was not drawn or is
late (l), so the odds of a late row are at most q l : 1 - q, and with p = q l / (q l + 1 - q) the probability is at most
p + (1 - p) q (1 - l) = q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import Floats, Ints, RowStream, Stream


@dataclass(frozen=True)
class Stragglers:
    dropout: tuple[float, float] = (0.0, 0.0)
    late: float = 0.0
    slow: float = 0.0
    joining: tuple[float, int] = (0.0, 0)

    def __post_init__(self) -> None:
        low, high = self.dropout
        share, after = self.joining
        check.fraction(joining=share)
        if share:
            check.count(**{"joining: the rounds before": after})
        check.fraction(dropout=low)
        check.fraction(dropout=high, late=self.late)
        if low > high:
            raise SpecError(f"dropout must go from the lower to the higher probability, not from {low} to {high}.")
        if not 0 <= self.slow <= 1:
            raise SpecError(f"slow must lie in [0, 1], not {self.slow!r}.")

    @property
    def none(self) -> bool:
        """Whether every client that takes part answers in time."""
        return self.dropout[1] == 0 and self.late == 0

    def require(self, population: int, rounds: int) -> None:
        """Refuse a law of joining that means nothing in such a run."""
        share, after = self.joining
        if share and not self.joiners(population):
            raise SpecError(f"joining = {share:g}:{after} is no one of {population} clients: use a larger share.")
        if share and after >= rounds:
            raise SpecError(f"joining = {share:g}:{after} never happens in {rounds} rounds: use fewer before it.")

    def joiners(self, population: int) -> int:
        """How many clients, the last ones, join later; someone is always there."""
        return min(population - 1, round(self.joining[0] * population))

    def there(self, ids: Ints, population: int, round: int) -> Ints:
        """Those of these clients who have joined before that round (counted from 0)."""
        return ids[ids < population - self.joiners(population)] if round < self.joining[1] else ids

    def answers(self, share: float, population: int, round: int) -> float:
        """The weight that a round's sum is expected to have; the first round of who joins is as that of the others."""
        later, own = self.joiners(population), round - self.joining[1]
        joined = later * self.expected(share, own) if own >= 0 else 0.0
        return (population - later) * self.expected(share, round) + joined

    def failing(self, ids: Sequence[int] | Ints, rng: Stream) -> Floats:
        """Each client's own probability to drop out; `rng` is public and the same in every round."""
        low, high = self.dropout
        return low + (high - low) * rng.rows(ids).uniform(1)[:, 0]

    def fates(
        self, ids: Sequence[int] | Ints, failing: Floats, rng: Stream
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Who answers in time, and who answers a round later."""
        draws = rng.rows(ids).uniform(2)
        answers, late = draws[:, 0] >= failing, draws[:, 1] < self.late
        return answers & ~late, answers & late

    def weights(self, failing: Floats) -> Floats:
        """How much an answer counts: at most one."""
        return (1 - self.dropout[1]) / (1 - failing)

    def expected(self, share: float, round: int) -> float:
        """The weight that one client is expected to have in a round's sum, drawn with probability `share`."""
        answers = share * (1 - self.dropout[1])
        in_time = share * (1 - sum(self.dropout) / 2) * (1 - self.late)
        return answers * (1 - self.late) + (answers * self.late * (1 - in_time) if round > 0 else 0.0)

    def steps(self, counts: Sequence[int], rng: RowStream) -> list[int]:
        """Local steps that each client really does."""
        if self.slow == 0:
            return list(counts)
        draws = rng.uniform(2)
        return [
            1 + int(part * (count - 1)) if is_slow < self.slow and count > 1 else count
            for count, (is_slow, part) in zip(counts, draws, strict=True)
        ]

    def mean_steps(self, count: float) -> float:
        return count if count <= 1 else (1 - self.slow) * count + self.slow * count / 2
