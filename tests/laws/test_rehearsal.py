"""Every method passes its rehearsal, in whatever setting it may run; every bad one is refused for the right reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from laws.bad_methods import REFUSED, NoBound, Sound, Steps, WrongDraw
from problems import CLASSES, FEATURES, federation, job, marked
from sordino.core import plugin
from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.data.clients import ArrayClients
from sordino.methods import local
from sordino.methods.base import Release
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.runs import legal
from sordino.runs.rehearsal import CLIENTS, prepared, promising, rehearse
from support.brought import bring

METHODS = plugin.available("methods")
ALGORITHMS = plugin.available("algorithms")
SIZES = (12, 5, 9, 7)
LOCALS = {  # beside one step with all records
    "steps": {"steps": 3},
    "batches": {"steps": 3, "batch_rate": 0.2},
    "epochs": {"steps": None, "epochs": 2.0, "batch_rate": None, "batch_size": 4},
    "adam": {"steps": 2, "optimizer": "adam"},
}


def dealt():
    """Clients with three users each, and some records with private attributes."""
    x, y = (torch.cat(t) for t in zip(*federation(SIZES), strict=True))
    owners = np.concatenate([100 * k + np.arange(n) * 3 // n for k, n in enumerate(SIZES)])
    return ArrayClients(x, y, SIZES, owners, marked(federation(SIZES)).tags)


def usual(method, **keys):
    """A job as everyone would run it, with some of its plan set without a calibration, which takes long."""
    plan = {k: keys.pop(k) for k in ("local",) if k in keys}
    made = job(method=method, clients=dealt(), **keys)
    changed = replace(made.plan, local=replace(made.plan.local, **plan.get("local", {})))
    made.method.require(changed)
    return replace(made, plan=changed)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_in_its_usual_setting(method):
    rehearse(usual(method))


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [(m, a) for m in METHODS for a in ALGORITHMS if legal.verdict(m, a, plugin.load("methods", m).units[0]).allowed],
)
def test_every_method_passes_with_every_algorithm(method, algorithm):
    steps = 1 if algorithm == "fedsgd" else 3
    rehearse(usual(method, algorithm=algorithm, local={"steps": steps}))


@pytest.mark.parametrize("method", [m for m in METHODS if "user" in plugin.load("methods", m).units])
@pytest.mark.parametrize("clients", [1, 2])
def test_every_method_passes_with_users(method, clients):
    rehearse(usual(method, unit="user", clients_per_user=clients, local={"steps": 2}))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", LOCALS)
def test_every_method_passes_however_clients_train(method, way):
    try:
        made = usual(method, local=LOCALS[way])
    except SpecError:
        assert way != "steps"  # a method may ask for full batches or plain SGD, not for one step
        return
    rehearse(made)


@pytest.mark.parametrize(
    "method", [m for m in METHODS if "batch_sampling" in plugin.load("methods", m).__annotations__]
)
def test_batches_of_a_fixed_size_pass(method):
    rehearse(usual(method, batch_sampling="fixed", local={"steps": 2, "batch_rate": 0.4}))


@pytest.mark.parametrize("method", [m for m in METHODS if "secure-sum" in plugin.load("methods", m).channels])
def test_a_secure_sum_passes(method):
    rehearse(usual(method, channel="secure-sum"))


def brought(monkeypatch, found, **keys):
    bring(monkeypatch, "brought", found)
    return job(**({"method": "brought", "local_steps": 3} | keys))


@pytest.mark.parametrize(("found", "words"), REFUSED, ids=[found.__name__ for found, _ in REFUSED])
def test_a_bad_method_is_refused_for_its_fault(monkeypatch, found, words):
    with pytest.raises(RunError) as told:
        rehearse(brought(monkeypatch, found))
    assert words in str(told.value) and str(told.value).startswith("brought: ") and "\n" not in str(told.value)


def test_a_release_without_a_bound_is_refused_while_the_plan_is_made(monkeypatch):
    with pytest.raises(SpecError, match="brought.releases: the release update needs a bound"):
        brought(monkeypatch, NoBound)


@pytest.mark.parametrize("found", [Sound, Steps])
@pytest.mark.parametrize("keys", [{}, {"rounds": 1}, {"max_participations": 1}, {"dropout": "0.3", "slow": 0.5}])
def test_the_methods_that_bad_ones_are_made_of_pass(monkeypatch, found, keys):
    rehearse(brought(monkeypatch, found, **keys))
