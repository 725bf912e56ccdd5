"""Every model through one private round, from the draw to the new model."""

import pytest
import torch
from cases import CASES

import sordino
from sordino.core import plugin
from sordino.core.vector import Layout


def test_every_model_has_a_case():
    assert set(CASES) == set(plugin.available("models"))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if c.learns else pytest.mark.slow) for n, c in CASES.items()]
)
def test_a_private_round(name, tmp_path):
    case = CASES[name]
    module = case.build_narrow(name)  # at full width in test_networks.py
    clients = [case.records(4, seed) for seed in range(2)]
    keys = {"method": "dp-sgd", "epsilon": 50.0, "rounds": 1, "learning_rate": 0.01, "device": "cpu", "seed": 0}
    result = sordino.train(module, clients, test=case.records(4, 9), out=str(tmp_path), **keys)
    layout = Layout.of(module)
    moved = layout.read(result.model) - layout.read(module)
    assert torch.isfinite(moved).all()
    for part, view in layout.views(moved).items():  # noise in every parameter: none was left out of the release
        assert float((view != 0).double().mean()) > 0.99, part  # a few are too small to move a float32
    assert result.guarantee.epsilon <= 50.0 and torch.isfinite(torch.tensor(result.history[0].loss))
