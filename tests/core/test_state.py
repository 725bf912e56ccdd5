"""What code keeps is put back, wherever it keeps it."""

import functools
import types
from collections import Counter, deque

import numpy as np
import pytest
import torch
from torch import nn

from sordino.core.errors import ModelError
from sordino.core.state import Snapshot

TOTAL = 1


class Slotted:
    __slots__ = ("count", "later")

    def __init__(self):
        self.count = 0

    def step(self):
        self.count += 1
        self.later = True
        return self.count


class Keeper:
    shared = 0

    def __init__(self):
        self.count, self.past, self.names, self.places = 0, [], {"a": [1]}, {1}
        self.queue, self.kinds, self.slots = deque([1]), Counter("aab"), Slotted()
        self.array, self.tensor = np.zeros(2), torch.zeros(2)
        self.space, self.nested = types.SimpleNamespace(n=0), (([0],),)
        self._own = 0

    def value(self):
        """Everything that may change, as plain numbers."""
        return (
            self.count, list(self.past), {k: list(v) for k, v in self.names.items()}, sorted(self.places),
            list(self.queue), dict(self.kinds), self.slots.count, hasattr(self.slots, "later"), self.array.tolist(),
            self.tensor.tolist(), self.space.n, self.nested[0][0][0], type(self).shared, hasattr(self, "extra"), TOTAL,
            self._own, "fresh" in globals(), getattr(step, "calls", 0),
        )  # fmt: skip


def step(keeper, default=[0]):  # noqa: B006
    global TOTAL, fresh
    TOTAL += 1
    fresh = True
    step.calls = getattr(step, "calls", 0) + 1
    default[0] += 1
    keeper.count += 1
    keeper.past.append(3)
    keeper.names["a"].append(2)
    keeper.names["b"] = [0]
    keeper.places.add(9)
    keeper.queue.append(4)
    keeper.kinds["c"] += 1
    keeper.slots.step()
    keeper.array += 1
    keeper.tensor += 1
    keeper.space.n += 1
    keeper.nested[0][0][0] += 1
    type(keeper).shared += 1
    keeper.extra = 1
    del keeper._own
    return default[0]


@pytest.mark.parametrize("wrap", [functools.partial, lambda f, k: lambda: f(k)], ids=["partial", "cell"])
def test_everything_is_as_it_was(wrap):
    keeper = Keeper()
    before, call = keeper.value(), wrap(step, keeper)
    snapshot = Snapshot(call)
    for _ in range(2):
        with snapshot:
            assert call() == 1
        assert keeper.value() == before
    assert snapshot.changed


def test_an_error_on_the_way_puts_it_back_as_well():
    keeper = Keeper()
    with pytest.raises(KeyError), Snapshot(keeper):
        keeper.count += 1
        raise KeyError
    assert keeper.count == 0


def test_what_others_did_in_between_is_put_back_too():
    """A look at held-out records between two rounds changes nothing for the second."""
    keeper = Keeper()
    snapshot = Snapshot(keeper)
    keeper.count = 7
    with snapshot:
        assert keeper.count == 0


def test_what_changes_nothing_is_not_told():
    keeper = Keeper()
    snapshot = Snapshot(keeper)
    with snapshot:
        keeper.value()
    assert not snapshot.changed


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("running", torch.ones(1).expand(3))

    def forward(self, x):
        return self.helper(x)

    def helper(self, x):
        self.running = torch.zeros(3)
        self.linear.note = x
        self.register_buffer("other", x)
        return self.linear(x)


def test_a_module_is_put_back_with_its_parts():
    net = Net()
    names = set(vars(net.linear))
    with Snapshot(net):
        net.eval()
        net(torch.ones(1, 2))
    assert net.running.tolist() == [1, 1, 1] and set(vars(net.linear)) == names
    assert net.training and "other" not in net._buffers


def test_memory_that_is_written_past_the_counts():
    net = Net()
    net.register_buffer("mean", torch.zeros(2))
    with Snapshot(net):
        net.mean.data.add_(1)
        net.mean.numpy()[0] = 5
        net.mean.data = torch.ones(3)
    assert net.mean.tolist() == [0, 0]


def test_parameters_must_not_be_written():
    net = Net()
    with pytest.raises(ModelError, match=r"overwrites a parameter of shape \[2, 2\]"), Snapshot(net), torch.no_grad():
        net.linear.weight.add_(1)


def test_whoever_trains_may_move_them_between_calls():
    net = Net()
    snapshot = Snapshot(net)
    with torch.no_grad():
        net.linear.weight.add_(1)
    with snapshot:
        net(torch.ones(1, 2))


def test_a_second_snapshot_leaves_out_what_the_first_one_holds():
    first, second = Keeper(), Keeper()
    second.past = first.past
    shared = Snapshot(first)
    own = Snapshot(second, beside=shared)
    first.past.append(1)
    second.count = 1
    own.restore()
    assert second.count == 0 and first.past == [1]
    shared.restore()
    assert second.past == []
