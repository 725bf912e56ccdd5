"""An active server: it sends clients a model of its choice, so that their honest answers reveal single records.

Fowl et al. (2022), "Robbing the fed", arXiv:2110.13057, Section 3.2. `imprinted` turns the first linear layer into
units that all measure the mean of a record and fire above thresholds at the quantiles of that measure; the layer behind
it weighs all units alike, so that every unit gets the same gradient from a record. The attack `imprint` then reads the
records. Everything else of a run stays as it is: pass the module to `train`, and its first broadcast is the chosen one,
or send `chosen(state)` in any later round.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sordino.core.errors import SpecError
from sordino.core.types import Model, State
from sordino.core.vector import Layout


@dataclass(frozen=True)
class ImprintServer:
    """Chooses broadcasts whose first layer sorts the records of a batch into bins."""

    known: Tensor  # records from the same source [n, ...], whose measures give the thresholds
    strength: float = 1.0  # factor of the first layer's weights

    def module(self, module: nn.Module) -> nn.Module:
        """Return a copy of a module that sorts records into bins."""
        twin = copy.deepcopy(module)
        first, second = _layers(twin)
        with torch.no_grad():
            line = torch.full_like(first.weight, self.strength / first.in_features)
            measures = self.known.flatten(1).to(line) @ line[0]
            at = torch.linspace(0, 1, first.out_features + 1)[:-1].to(line)  # the lowest threshold is the least measure
            first.weight.copy_(line)
            first.bias.copy_(-torch.quantile(measures, at))
            first.bias[0] = -(measures.min() - measures.std())  # below any record
            second.weight.copy_(second.weight[:, :1].expand_as(second.weight))
        return twin

    def chosen(self, state: State, model: Model) -> State:
        """Return a state with the chosen model in place of the trained one."""
        twin = copy.deepcopy(model.module)
        model.layout.write(twin, state.params)
        return replace(state, params=Layout.of(twin).read(self.module(twin)).to(state.params))


def _layers(module: nn.Module) -> tuple[nn.Linear, nn.Linear]:
    """Return the first two linear layers; raise SpecError unless the model begins with linear, ReLU, linear."""
    steps = [m for m in module.modules() if not isinstance(m, nn.Sequential | nn.Flatten | nn.Identity)]
    if len(steps) >= 3:
        first, between, second = steps[:3]
        if isinstance(first, nn.Linear) and isinstance(second, nn.Linear) and isinstance(between, nn.ReLU):
            return _with_bias(first), second
    kinds = ", ".join(type(m).__name__ for m in steps[:3])
    raise SpecError(
        f"an imprint needs a model that begins with a linear layer with bias, ReLU and a linear layer; this one "
        f"begins with {kinds}."
    )


def _with_bias(layer: nn.Linear) -> nn.Linear:
    if layer.bias is None:
        raise SpecError("an imprint needs a bias in the first linear layer, for its thresholds; this model has none.")
    return layer
