"""Typed state on file and back: what comes back is what was there, where it was."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.saved import Saved, written
from sordino.core.types import State
from sordino.core.variables import flat, restored

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")


@dataclass(frozen=True)
class Things:
    clip: float
    count: int
    ended: bool
    paid: Tensor
    look: Tensor | None = None


FRESH = Things(1.0, 0, False, torch.zeros(3, dtype=torch.float64))


def again(things, fresh=FRESH, device=CPU):
    return restored("method", fresh, flat("method", things), device)


def test_numbers_and_tensors_come_back_with_their_types():
    things = Things(0.1 + 0.2, 7, True, torch.tensor([1.0, 2.0, 1 / 3], dtype=torch.float64), torch.tensor([5]))
    found = again(things)
    assert (found.clip, found.count, found.ended) == (things.clip, 7, True)
    assert [type(x) for x in (found.clip, found.count, found.ended)] == [float, int, bool]
    assert torch.equal(found.paid, things.paid) and found.paid.dtype == torch.float64
    assert torch.equal(found.look, things.look) and found.look.dtype == torch.int64
    assert again(FRESH).look is None


def test_a_number_that_began_as_a_whole_one_is_not_cut():
    began = replace(FRESH, clip=1)
    assert again(replace(began, clip=0.75), began).clip == 0.75


def test_tensors_of_the_host_stay_there_and_others_follow_the_model():
    fresh = replace(FRESH, paid=FRESH.paid.to(ELSEWHERE))
    saved = replace(FRESH, look=torch.ones(2))
    assert again(saved, FRESH, ELSEWHERE).paid.device == CPU
    assert again(saved, fresh, ELSEWHERE).paid.device == ELSEWHERE
    assert again(saved, FRESH, ELSEWHERE).look.device == ELSEWHERE


def test_a_checkpoint_that_lacks_or_has_something_is_one_clear_line():
    tensors = flat("method", FRESH)
    for changed, words in (
        ({k: v for k, v in tensors.items() if k != "method.paid"}, "lacks method.paid"),
        (tensors | {"method.other": torch.zeros(1)}, "holds method.other, which this run does not have"),
    ):
        with pytest.raises(RunError, match=words) as error:
            restored("method", FRESH, changed, CPU)
        assert "\n" not in str(error.value)
    with pytest.raises(RunError, match=r"holds method\.clip"):
        restored("method", None, tensors, CPU)


def test_a_checkpoint_of_an_earlier_version_is_one_clear_line():
    state = State(torch.zeros(4), method=FRESH)
    assert Saved(written(state), 3).restored(state, CPU).round == 3
    old = {"params": torch.zeros(4), "extra.control": torch.zeros(4)}
    with pytest.raises(RunError, match="written by an earlier version of sordino: resume it with that one"):
        Saved(old, 3).restored(state, CPU)
    with pytest.raises(RunError, match="does not fit this run"):
        Saved(written(state), 3).restored(replace(state, params=torch.zeros(5)), CPU)
