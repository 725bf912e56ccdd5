"""Models that return an object with logits train as the same models that return the tensor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import sordino
from sordino.core.errors import ModelError
from sordino.tasks.outputs import Logits, tensor_valued, unwrapped
from support.errors import one_line_error
from support.problems import FEATURES, federation, held_out, mlp


class Wrapped(nn.Module):
    """Returns what Hugging Face models return: an object, or a dict."""

    def __init__(self, form=SimpleNamespace):
        super().__init__()
        self.net, self.form = mlp(), form

    def forward(self, x):
        return self.form(loss=None, logits=self.net(x))


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x)


KEYS = {"rounds": 2, "epsilon": 8.0, "device": "cpu", "seed": 0}


@pytest.mark.parametrize("form", [SimpleNamespace, dict])
def test_an_object_with_logits_is_trained_as_its_logits(form, tmp_path):
    test = held_out()
    wrapped = sordino.train(Wrapped(form), federation(), test=test, out=str(tmp_path), name="a", **KEYS)
    bare = sordino.train(Bare(), federation(), test=test, out=str(tmp_path), name="b", **KEYS)
    assert isinstance(wrapped.model, Wrapped)  # given back as it came, under its own names
    assert wrapped.model.state_dict().keys() == bare.model.state_dict().keys()
    assert all(torch.equal(v, bare.model.state_dict()[k]) for k, v in wrapped.model.state_dict().items())
    assert wrapped.history[-1] == bare.history[-1]
    loaded = sordino.load(tmp_path / "a", Wrapped(form))
    assert torch.equal(loaded.weights["net.0.weight"], wrapped.model.state_dict()["net.0.weight"])


def test_other_outputs_are_left_to_the_check_of_the_model():
    x = torch.zeros(2, FEATURES)
    assert isinstance(tensor_valued(Wrapped(), x), Logits)
    plain = mlp()
    assert tensor_valued(plain, x) is plain and unwrapped(plain) is plain
    standardised = nn.Sequential(nn.Identity(), Logits(Wrapped()))
    assert isinstance(unwrapped(standardised)[1], Wrapped)
    odd = Wrapped(lambda **parts: (parts["logits"],))
    assert tensor_valued(odd, x) is odd
    with one_line_error(ModelError, "must return one tensor"):
        sordino.train(odd, federation(), **KEYS)
