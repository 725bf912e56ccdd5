"""The estimate of a run: workers divide the time and add memory, and they are suggested where they would pay."""

from __future__ import annotations

import pytest
import torch

from sordino.runs import estimate as estimates
from sordino.runs.estimate import RunEstimate, estimate, idle_cores
from support.split import clients, job


@pytest.mark.parametrize(
    ("cores", "seconds", "keys", "suggested"),
    [
        (16, 0.5, {}, True),
        (2, 0.5, {}, False),
        (16, 0.01, {}, False),  # over before workers have started
        (16, 0.5, {"federation": "workers", "workers": 1}, False),
        (16, 0.5, {"client_rate": 0.5}, False),  # too few clients a round
    ],
)
def test_workers_are_suggested_where_they_would_pay(monkeypatch, cores, seconds, keys, suggested):
    monkeypatch.setattr(estimates, "cores", lambda: cores)
    made = job(clients() * 2, **{"method": "nbafl", "client_rate": 1.0} | keys)
    found = idle_cores(made, RunEstimate(1000, seconds, 1.0, 1e9))
    assert (found is not None) == suggested
    assert found is None or f"{cores} cores" in found


def test_an_estimate_of_workers_counts_their_memory_and_leaves_the_threads_as_they_are():
    threads = torch.get_num_threads()
    alone, several = (estimate(job(method="nbafl", federation=f)) for f in ("simulator", "workers"))
    assert alone is not None and several is not None
    room = job(method="nbafl", federation="workers").federation.room
    assert several.memory > room.taken(1) and several.round > 0
    assert torch.get_num_threads() == threads
