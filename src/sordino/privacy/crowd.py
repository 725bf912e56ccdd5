"""Public facts about the clients among whom a client's message is hidden; channels use them to compute costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Crowd:
    """The clients among whom a client's message is hidden."""

    population: int = 1
    everyone: bool = False  # whether every client answers in every round, so that no client's noise is ever missing
    colluders: int = 0  # number of clients that share all they know with the viewer
    heaviest: float = 1.0  # largest weight of one row in a sum of rows whose mean weight is one
    sure: int = 1  # clients certain to answer in a round in which a given one does, including that one
    single: bool = False  # whether a unit is all data of a client, so that its cost is the cost of the client's message
    members: int = 1  # fewest clients in the cohort of a round that is released
    dropouts: int = 0  # most members of a cohort that may be missing from a sum that is released
    lightest: float = 1.0  # smallest weight of one row, as for `heaviest`

    @property
    def honest(self) -> int:
        """Return the number of clients that do not collude, at least 1."""
        return max(1, self.population - self.colluders)

    @property
    def sharing(self) -> int:
        """Return the number of honest clients whose noise is certain to be in any sum of rows, at least 1.

        A cohort may have more than `members` clients; `honest_in_any_sum` grows with their number.
        """
        if self.everyone:
            return self.honest
        return max(1, honest_in_any_sum(self.members, self.dropouts, self.colluders))


def honest_in_any_sum(members: int, dropouts: int, colluders: int) -> int:
    """Return the least number of honest members in any sum that a server can obtain; 0 if it may obtain single rows.

    The protocol is that of Bonawitz et al. (2017), "Practical secure aggregation for privacy-preserving machine
    learning", with n members. A client helps to unmask one list of survivors only, of at least T = n - dropouts
    members, and gives for every member one of two shares: of its own mask if it is on the list, of its key if not.
    Either secret takes T shares. The server may show each client another list, and c colluders give it all they hold.

    Both secrets of an honest member would reveal its row. They take T - c honest clients each, who are different ones:
    impossible if 2 (T - c) > n - c, that is, 2 T > n + c. Then a sum over a set of members needs the masks of its
    honest members and the keys of all other honest ones. A key needs T - c of the h = n - c honest clients whose lists
    leave that member out, and each list leaves out n - T members at most. So at most h (n - T) / (T - c) honest members
    are missing. The rest, h - floor(h (n - T) / (T - c)), grows by at least one with every further member:
    with x = T - c it is x - floor((n - T)^2 / x), where n - T is fixed.
    """
    least, honest = members - dropouts, members - colluders
    if 2 * least <= members + colluders:
        return 0
    return honest - honest * dropouts // (least - colluders)
