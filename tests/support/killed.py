"""Runs that are killed at a point of our choice, and what they had spent by then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sordino.core import faults
from sordino.runs import run


class Killed(BaseException):
    """Nothing in the run may catch it."""


def kill_at(point: str, before: int = 0) -> None:
    """Let runs die whenever they pass a point (see faults.POINTS) that they have passed so often before."""
    seen = 0

    def hook(name: str) -> None:
        nonlocal seen
        seen += name == point
        if name == point and seen > before:
            raise Killed

    faults.set_hook(hook)


@contextmanager
def killing(point: str, before: int = 0) -> Iterator[None]:
    """As `kill_at`, within the block only."""
    kill_at(point, before)
    try:
        yield
    finally:
        faults.set_hook(None)


def dies(point: str, before: int, begin: Callable[[], object]) -> bool:
    """Return whether a run that is begun so dies at this point."""
    with killing(point, before):
        try:
            begin()
        except Killed:
            return True
    return False


def spent(method, share, mode, monkeypatch, begin, resume):
    """Kill a run of a method with a filter after four merges, and resume it.

    Return the share of its budget that each client spent, before the crash and after it, checked; a research run
    repeats the same releases. share: of a message, what each client says that it spent."""
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
