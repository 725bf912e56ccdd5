"""A run of a method with a filter, killed after four merges and resumed: what ever left its clients."""

from __future__ import annotations

from collections import Counter

import pytest

from sordino.runs import faults, run


class Killed(BaseException):
    """Nothing in the run may catch it."""


def spent(method, share, mode, monkeypatch, begin, resume):
    """The share of its budget that each client spent, before the crash and after it, checked; a research run repeats
    the same releases. share: of a message, what each client says that it spent."""
    left, merges, real = {}, Counter(), method.train

    def train(self, state, site):
        message, own = real(self, state, site)
        for client, part in zip(site.rng.ids.tolist(), share(message), strict=True):
            left[client, state.round if mode == "research" else len(left)] = part
        return message, own

    def die(name):
        merges[name] += 1
        if merges["merged"] == 4:
            raise Killed

    def total(client):
        return sum(part for (who, _), part in left.items() if who == client)

    monkeypatch.setattr(method, "train", train)
    monkeypatch.setattr(run, "rehearse", lambda job: None)  # which trains made-up clients
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
