import torch
from torch import nn

from sordino.core.vector import Layout


class Odd(nn.Module):
    """A tied weight, a frozen one, a 0-d one and a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.inner = nn.Linear(3, 3)
        self.frozen = nn.Parameter(torch.arange(4.0), requires_grad=False)
        self.twin = nn.Linear(3, 3, bias=False)
        self.twin.weight = self.inner.weight
        self.register_buffer("seen", torch.ones(2))


def test_a_tied_parameter_has_one_slot_and_a_frozen_one_or_a_buffer_none():
    layout = Layout.of(Odd())
    assert [(s.name, s.shape) for s in layout.slots] == [
        ("scale", ()),
        ("inner.weight", (3, 3)),
        ("inner.bias", (3,)),
    ]
    assert [(s.start, s.stop) for s in layout.slots] == [(0, 1), (1, 10), (10, 13)]
    assert layout.dim == 13


def test_write_then_read_is_the_identity_and_moves_nothing_else():
    module = Odd()
    layout, vector = Layout.of(module), torch.arange(13.0) - 5
    layout.write(module, vector)
    assert torch.equal(layout.read(module), vector)
    assert module.scale.shape == () and module.scale.item() == -5
    assert module.twin.weight is module.inner.weight
    assert torch.equal(module.frozen, torch.arange(4.0)) and torch.equal(module.seen, torch.ones(2))


def test_read_is_a_copy_and_views_are_not():
    module = Odd()
    layout = Layout.of(module)
    vector = layout.read(module)
    vector += 1
    assert module.scale.item() == 1.5
    layout.views(vector)["inner.bias"][1] = 99
    layout.views(vector)["scale"].fill_(-7)
    assert float(vector[11]) == 99 and float(vector[0]) == -7
    rows = torch.zeros(4, 13)
    views = layout.views(rows)
    assert {k: tuple(v.shape) for k, v in views.items()} == {
        "scale": (4,),
        "inner.weight": (4, 3, 3),
        "inner.bias": (4, 3),
    }
    views["inner.weight"][2, 1, 0] = 5
    assert float(rows[2, 4]) == 5


def test_a_module_without_trainable_parameters_is_a_vector_of_none():
    layout = Layout.of(nn.ReLU())
    assert layout.dim == 0 and layout.read(nn.ReLU()).shape == (0,)
