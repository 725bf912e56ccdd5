"""A run of a method with a filter, killed after four merges and resumed: what ever left its clients."""

from __future__ import annotations

from collections import Counter

import pytest

from sordino.runs import faults


class Killed(BaseException):
    """Nothing in the run may catch it."""


def spent(method, column, mode, monkeypatch, begin, resume):
    """The share of its budget that each client spent, before the crash and after it, checked; a research run repeats
    the same releases. column: of the rows, where a client says its share."""
    left, merges, real = {}, Counter(), method.release

    def release(self, rows, sizes, state, plan, rng):
        for client, share in zip(rng.ids.tolist(), rows[:, column].tolist(), strict=True):
            left[client, state.round if mode == "research" else len(left)] = share
        return real(self, rows, sizes, state, plan, rng)

    def die(name):
        merges[name] += 1
        if merges["merged"] == 4:
            raise Killed

    def total(client):
        return sum(share for (who, _), share in left.items() if who == client)

    monkeypatch.setattr(method, "release", release)
    faults.set_hook(die)
    with pytest.raises(Killed):
        begin()
    faults.set_hook(None)
    first = total(0)
    assert 0.5 < first < 1
    result = resume()
    each = [total(client) for client in range(4)]
    assert len(set(each)) == 1 and first < each[0] <= 1
    return each[0], result
