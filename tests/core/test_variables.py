"""Typed state as tensors on file and back, field by field."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.variables import flat, restored

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Everything:
    vector: Tensor
    counts: Tensor
    flags: Tensor
    number: float
    count: int
    on: bool
    maybe: Tensor | None = None


def fresh():
    return Everything(
        torch.zeros(3), torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool), 1.0, 0, False
    )


def later():
    return Everything(
        torch.tensor([1.5, float("inf"), -0.0]), torch.tensor([2**62 + 1, -3]), torch.tensor([True, False]),
        0.1 + 0.2, 2**60 + 1, True, torch.tensor([0.1], dtype=torch.float64),
    )  # fmt: skip


def same(a, b):
    for name in Everything.__dataclass_fields__:
        one, other = getattr(a, name), getattr(b, name)
        assert type(one) is type(other), name
        if isinstance(one, Tensor):
            assert one.dtype == other.dtype and torch.equal(one, other), name
        else:
            assert one == other, name


def test_every_kind_of_field_comes_back_as_it_was_to_the_last_bit():
    tensors = flat("method", later())
    assert set(tensors) == {f"method.{name}" for name in Everything.__dataclass_fields__}
    assert all(isinstance(value, Tensor) for value in tensors.values())
    same(restored("method", replace(fresh(), maybe=torch.zeros(1, dtype=torch.float64)), tensors, CPU), later())
    same(restored("method", fresh(), flat("method", fresh()), CPU), fresh())


def test_a_field_that_is_none_is_left_out_and_may_come_later():
    assert "method.maybe" not in flat("method", fresh())
    same(restored("method", fresh(), flat("method", later()), CPU), later())  # where a fresh state has none yet


def test_a_field_may_become_none():
    gone = replace(later(), vector=None, number=None)
    back = restored("method", fresh(), flat("method", gone), CPU)
    assert back.vector is None and back.number is None and back.count == later().count


def test_plain_numbers_are_plain_again():
    back = restored("method", fresh(), flat("method", later()), CPU)
    assert (type(back.number), type(back.count), type(back.on)) == (float, int, bool)
    assert back.number == 0.1 + 0.2 and back.count == 2**60 + 1  # in float64 and int64, not in float32


def test_nothing_is_nothing():
    assert flat("method", None) == {} and restored("method", None, {}, CPU) is None
    assert restored("method", None, {"algorithm.x": torch.zeros(1)}, CPU) is None


def test_states_of_different_names_are_apart():
    both = flat("method", later()) | flat("methods", fresh()) | {"params": torch.zeros(1)}
    same(restored("method", fresh(), both, CPU), later())
    same(restored("methods", fresh(), both, CPU), fresh())


def test_a_strange_field_is_refused():
    tensors = flat("method", later()) | {"method.velocity": torch.zeros(3)}
    with pytest.raises(RunError, match=r"holds method\.velocity, which this run does not have"):
        restored("method", fresh(), tensors, CPU)
    with pytest.raises(RunError, match=r"holds method\.count, which this run does not have"):
        restored("method", None, {"method.count": torch.zeros(1)}, CPU)


@pytest.mark.parametrize("name", ["vector", "number", "count", "on"])
def test_a_missing_field_is_refused(name):
    tensors = flat("method", later())
    del tensors[f"method.{name}"]
    with pytest.raises(RunError, match=rf"lacks method\.{name}"):
        restored("method", fresh(), tensors, CPU)


def test_all_missing_is_missing():
    with pytest.raises(RunError, match="lacks method"):
        restored("method", fresh(), {}, CPU)
