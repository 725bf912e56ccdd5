"""Every method passes its rehearsal, in whatever setting it may run; every bad one is refused for the right reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from laws.bad_methods import REFUSED, NoBound, Sound, Steps
from problems import federation, job, linear
from sordino.core import plugin
from sordino.core.errors import RunError, SpecError
from sordino.federations.rehearsal import Rehearsal
from sordino.runs import rehearsal
from sordino.runs.rehearsal import rehearse
from support.brought import bring


def brought(monkeypatch, found, **keys):
    bring(monkeypatch, "brought", dataclass(frozen=True)(found))
    return job(**({"method": "brought", "local_steps": 3} | keys))


@pytest.mark.parametrize(("found", "words"), REFUSED, ids=[found.__name__ for found, _ in REFUSED])
def test_a_bad_method_is_refused_for_its_fault(monkeypatch, found, words):
    with pytest.raises(RunError) as told:
        rehearse(brought(monkeypatch, found))
    assert words in str(told.value) and str(told.value).startswith("brought: ") and "\n" not in str(told.value)
