"""How many members must remain in a secure sum, and how many are in the smallest sum that a lying server can get."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.masking.errors import MaskingError
from sordino.masking.wire import MOST_MEMBERS


@dataclass(frozen=True)
class SumPolicy:
    """What a member asks of every secure sum that it takes part in; all members of a sum need the same policy."""

    min_cohort: int  # least number of members that take part in a sum
    allowed_dropouts: int = 0  # members that may vanish after the keys were exchanged
    colluders: int = 0  # members that may share all they know with the server

    def __post_init__(self) -> None:
        for name, value, least in (
            ("min_cohort", self.min_cohort, 2),
            ("allowed_dropouts", self.allowed_dropouts, 0),
            ("colluders", self.colluders, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SpecError(f"{name} must be a whole number of at least {least}, not {value!r}.")

    def threshold(self, members: int) -> int:
        """Return the number of members that must remain, T, or raise an error if a sum of so many is refused."""
        if members < self.min_cohort:
            raise MaskingError(f"a sum of {members} members is refused: {self.min_cohort} are the least.")
        if members > MOST_MEMBERS:
            raise MaskingError(f"a sum of {members} members is refused: {MOST_MEMBERS} are the most.")
        threshold = members - self.allowed_dropouts
        if 2 * threshold <= members + self.colluders:
            raise MaskingError(
                f"a sum of {members} members is refused: with {self.allowed_dropouts} allowed drop-outs and "
                f"{self.colluders} colluders a lying server could single out a member. Allow fewer drop-outs, or ask "
                "more clients."
            )
        return threshold


def least_in_sum(members: int, threshold: int, colluders: int = 0) -> int:
    """Return the least number of members, colluders included, whose sum a lying server can obtain.

    Let n be the number of members, T the threshold, c the number of colluders and h = n - c the number of honest
    members. The server may tell every honest member another list of survivors, of T members at least. Let a(v) be the
    number of honest members that were told that v survived; each reveals its share of v's private seed, and the other
    h - a(v) at most reveal their share of v's mask key. The colluders add c shares of either kind. So the server gets

        the seed of v      only if  a(v) >= T - c,
        the mask key of v  only if  a(v) <= h - T + c,

    and never both, since 2T > n + c means that T - c > h - T + c. Every two honest members share a mask. It leaves a
    sum over a set S of honest members only if both are in S, or if one of the two mask keys is known; the private mask
    of v in S leaves it only if the seed of v is known. Hence the key of every honest v outside of S is known: a(v) <=
    h - T + c. In S, and for the colluders, a(v) <= h. All lists together have at least h T entries, so

        h T  <=  sum of a(v)  <=  s h + (n - s)(h - T + c),       s = |S| + c,
        s    >=  (h T - n (h - T + c)) / (T - c).

    Asking fewer members does not help: with h' answers the same count gives |S| >= h' - h (h' - T + c) / (T - c), which
    falls as h' grows, since T - c <= h. Nor do members that dealt no shares: they are in no list and share no mask, so
    that they only lower the h in this formula. Without drop-outs (T = n) the result is n.
    """
    return least_honest_in_sum(members, threshold, colluders) + colluders


def least_honest_in_sum(members: int, threshold: int, colluders: int = 0) -> int:
    """Return the least number of honest members whose sum a lying server can obtain: `least_in_sum` less colluders.

    It is h (2T - n - c) / (T - c), rounded up, which is the bound of `least_in_sum` less c.
    """
    check.count(members=members, threshold=threshold)
    check.non_negative(colluders=colluders)
    if threshold > members or 2 * threshold <= members + colluders:
        raise SpecError(
            f"a threshold of {threshold} for {members} members with {colluders} colluders protects nobody: twice the "
            "threshold must exceed members and colluders together."
        )
    honest = members - colluders
    return -(-honest * (2 * threshold - members - colluders) // (threshold - colluders))
