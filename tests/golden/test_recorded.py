"""Every recorded run gives what it gave: the model bit for bit, epsilon and noise to the last digit.

On a machine with other kernels (the probe says so) epsilon and noise agree to 1e-9 and the model to about 1e-3."""

from __future__ import annotations

import copy
import json

import pytest

from golden.recorded import FILE, differences, machine, play
from golden.runs import REPLAYED, RESUMED, RUNS
from sordino.core import plugin

RECORDED = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def same_machine() -> bool:
    return machine() == RECORDED["machine"]


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_recorded_run_gives_what_it_gave(name, same_machine):
    assert differences(name, play(name), RECORDED["runs"][name], same_machine) == []


def test_all_methods_algorithms_and_channels_are_recorded():
    assert RECORDED["runs"].keys() == RUNS.keys()
    for kind, key, usual in (("methods", "method", ""), ("algorithms", "algorithm", "fedavg")):
        assert set(plugin.available(kind)) == {run.keys.get(key, usual) for run in RUNS.values()}
    assert {run.keys.get("channel", "direct") for run in RUNS.values()} == {"direct", "secure-sum"}


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_was_recorded_as_the_uninterrupted_one(name):
    assert RECORDED["runs"][f"{name}-resumed"] == RECORDED["runs"][name]


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replayed_run_was_recorded_as_the_uninterrupted_one(name):
    """Rounds that were charged already stay charged while they are played again, so their epsilon is that of both."""
    again, once = RECORDED["runs"][f"{name}-replayed"], RECORDED["runs"][name]
    assert again | {"epsilon": None} == once | {"epsilon": None}
    assert again["epsilon"] == [once["epsilon"][1], *once["epsilon"][1:]]


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("owner_noise", lambda old: [repr(1.001 * float(v)) for v in old]),
        ("weights", lambda old: [1.01 * v for v in old]),
        ("epsilon", lambda old: [{k: repr(float(v) + 1e-6) for k, v in row.items()} for row in old]),
        ("guarantees", lambda old: {k: v | {"relation": "replace"} for k, v in old.items()}),
        ("decided_values", lambda old: old[:-1]),
    ],
)
def test_a_change_is_seen(key, change, same):
    old = RECORDED["runs"]["udp-fl-managed"]
    new = copy.deepcopy(old)
    assert differences("udp-fl-managed", new, old, same) == []
    new[key] = change(old[key])
    if key == "weights":
        new["model"] = "of other weights"
    assert len(differences("udp-fl-managed", new, old, same)) == 1


def test_the_last_bit_counts_on_the_same_machine():
    old = RECORDED["runs"]["dp-sgd"]
    last = repr(float(old["noise"][-1]) * (1 + 3e-16))
    assert last != old["noise"][-1]
    assert len(differences("dp-sgd", old | {"noise": [*old["noise"][:-1], last]}, old, True)) == 1
    assert len(differences("dp-sgd", old | {"model": "0" * 64}, old, True)) == 1
