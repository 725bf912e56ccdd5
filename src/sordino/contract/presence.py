"""Clients that join later, drop out, answer late or do fewer steps, under a public law independent of their data.

- Dropout: a drawn client never answers, with its own public probability between `dropout[0]` and `dropout[1]`. Clients
  that fail often would be under-represented, so an answer is weighted by (1 - highest) / (1 - own): no weight exceeds
  one, the clip still bounds every message, and the mean is unbiased as long as failures are independent of the data.
- Late: with probability `late` an answer arrives one round later, unless its client has answered in time by then: two
  messages of one client in one sum would double its sensitivity.
- Slow: with probability `slow` a client does only a part of its local steps, every number being equally likely.
- Joining: the last clients, a fraction `joining[0]` of all, are present only after `joining[1]` rounds. Before that,
  those of them that are drawn are left out, pay nothing and are not expected to answer. Draws and sampling rates do not
  change, not even for fixed-size cohorts: cohorts are drawn among all clients and are smaller before the others join.
  So late joiners have the same cost per round over fewer rounds, and the cost of clients that are present from the
  start holds for all. (If messages are weighted by records, weights stay relative to the mean of all clients; if the
  joining clients are larger, earlier steps are correspondingly shorter.)

Every client that is drawn and present pays, whether its answer arrives or not. Sums are divided by what is expected to
arrive, never by what did. Noise and epsilon hold whatever the stragglers do; only unbiasedness needs the assumption of
independence (and late = 0: if answers may be late, reliable clients lose slightly more of theirs).

Late answers do not affect amplification by Poisson sampling. Given everything seen before, a client's row is in a
round's sum with probability at most the sampling rate q: rounds without the client look the same whether it was not
drawn or is late (with probability l), so the odds of a late row are at most q l : 1 - q, and with p = q l / (q l + 1 -
q) the probability is at most p + (1 - p) q (1 - l) = q.
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
    """The public law of dropout, late answers, slow clients and late joining; see the module docstring."""

    dropout: tuple[float, float] = (0.0, 0.0)  # lowest and highest dropout probability of a client
    late: float = 0.0  # probability that an answer arrives one round later
    slow: float = 0.0  # probability that a client does only a part of its local steps
    joining: tuple[float, int] = (0.0, 0)  # fraction of clients that join late, and rounds before they do

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
        """Return whether every client that takes part answers in time."""
        return self.dropout[1] == 0 and self.late == 0

    def require(self, population: int, rounds: int) -> None:
        """Raise an error if `joining` has no effect in a run of this size."""
        share, after = self.joining
        if share and not self.joiners(population):
            raise SpecError(f"joining = {share:g}:{after} selects none of {population} clients: use a larger share.")
        if share and after >= rounds:
            raise SpecError(
                f"joining = {share:g}:{after} never happens in {rounds} rounds: use fewer rounds before it."
            )

    def joiners(self, population: int) -> int:
        """Return how many clients, the last ones, join late; at least one is present from the start."""
        return min(population - 1, round(self.joining[0] * population))

    def there(self, ids: Ints, population: int, round: int) -> Ints:
        """Return those of these clients that have joined before the given round (counted from 0)."""
        return ids[ids < population - self.joiners(population)] if round < self.joining[1] else ids

    def answers(self, share: float, population: int, round: int) -> float:
        """Return the expected total weight of a round's sum.

        The first round of clients that join late counts like the first round of the others.
        """
        later, since_joining = self.joiners(population), round - self.joining[1]
        joined = later * self.expected(share, since_joining) if since_joining >= 0 else 0.0
        return (population - later) * self.expected(share, round) + joined

    def failing(self, ids: Sequence[int] | Ints, rng: Stream) -> Floats:
        """Return each client's dropout probability; `rng` is public and the same in every round."""
        low, high = self.dropout
        return low + (high - low) * rng.rows(ids).uniform(1)[:, 0]

    def fates(
        self, ids: Sequence[int] | Ints, failing: Floats, rng: Stream
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which clients answer in time, and which answer one round later, as boolean masks."""
        draws = rng.rows(ids).uniform(2)
        answers, late = draws[:, 0] >= failing, draws[:, 1] < self.late
        return answers & ~late, answers & late

    def weights(self, failing: Floats) -> Floats:
        """Return the weight of each client's answer, at most one."""
        return (1 - self.dropout[1]) / (1 - failing)

    def expected(self, share: float, round: int) -> float:
        """Return the expected weight in a round's sum of one client that is drawn with probability `share`."""
        answers = share * (1 - self.dropout[1])
        in_time = share * (1 - sum(self.dropout) / 2) * (1 - self.late)
        return answers * (1 - self.late) + (answers * self.late * (1 - in_time) if round > 0 else 0.0)

    def steps(self, counts: Sequence[int], rng: RowStream) -> list[int]:
        """Return the number of local steps that each client actually does."""
        if self.slow == 0:
            return list(counts)
        draws = rng.uniform(2)
        return [
            1 + int(part * (count - 1)) if is_slow < self.slow and count > 1 else count
            for count, (is_slow, part) in zip(counts, draws, strict=True)
        ]

    def mean_steps(self, count: float) -> float:
        """Return the expected number of local steps of a client that is asked for `count`."""
        return count if count <= 1 else (1 - self.slow) * count + self.slow * count / 2
