"""Private copies of the user's model: one per thread, so that nothing is ever shared or changed.

A copy holds no trainable parameters. The module of a layer with a book-keeping rule keeps its place, its attributes and
the name of its type, but its forward is replaced by ours, and code that reads its weights directly is detected.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sordino.core.errors import ModelError
from sordino.core.vector import Layout
from sordino.gradients.alone import inside, lifted
from sordino.gradients.layers import FREE, LAYERS, RANDOM
from sordino.gradients.layers.base import TapedLayer
from sordino.gradients.tape import Unsupported

Plan = dict[str, tuple[type[TapedLayer], dict[str, str]]]  # module path -> (stand-in, {parameter name: slot})


def refuse_batch_statistics(module: nn.Module) -> None:
    """Raise `ModelError`, with the layer's path, if a layer mixes the samples of a batch.

    Such a layer has no per-sample gradients.
    """
    for path, part in module.named_modules():
        mixes = isinstance(part, _BatchNorm) and (part.training or part.running_mean is None)
        keeps = isinstance(part, _InstanceNorm) and part.training and part.track_running_stats
        if mixes or keeps:
            kind = type(part).__name__
            raise ModelError(
                f"{path or 'the model'} is {kind}, which mixes or keeps statistics of a batch, so no sample has a"
                f" gradient of its own. Use GroupNorm or InstanceNorm without running statistics instead."
            )


def plan(module: nn.Module, layout: Layout) -> Plan:
    """Return which stand-in handles which slots; raise `Unsupported` with the reason if a slot has none."""
    owners: dict[str, list[str]] = {}
    first = {id(value): name for name, value in module.named_parameters()}
    parts = dict(module.named_modules())
    for path, part in parts.items():
        for name, value in part.named_parameters(recurse=False):
            owners.setdefault(first[id(value)], []).append(f"{path}.{name}" if path else name)
    always = RANDOM | FREE
    chosen: Plan = {
        path: (always[type(part)], {})
        for path, part in parts.items()
        if type(part) in always and not always[type(part)].refuses(part)
    }
    for slot in layout.slots:
        if len(owners[slot.name]) > 1:
            raise Unsupported(f"{slot.name} is tied: {', '.join(owners[slot.name])}")
        path, _, name = slot.name.rpartition(".")
        part = parts[path]
        layer = LAYERS.get(type(part))
        if layer is None or not re.fullmatch(layer.names, name):
            raise Unsupported(f"{slot.name} belongs to {type(part).__name__}, which has no rule")
        if reason := layer.refuses(part):
            raise Unsupported(f"{path or type(part).__name__} {reason}")
        chosen.setdefault(path, (layer, {}))[1][name] = slot.name
    return chosen


def pristine(module: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters but not the buffers; it is a template for other copies, never called."""
    return copy.deepcopy(module, {id(value): value for value in module.parameters()})


def private(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy on a device; its parameters share memory with the user's if the device is the same."""
    params = {id(value): value for value in module.parameters()}
    twin = copy.deepcopy(module, dict[int, Any](params))
    fresh = {k: nn.Parameter(v.detach().to(device), requires_grad=False) for k, v in params.items()}  # preserves ties
    for part in twin.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = fresh[id(value)]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device)
    return twin


def patch(twin: nn.Module, chosen: Plan) -> list[TapedLayer]:
    """Replace the forward of the planned modules of a private copy by stand-ins, and return the stand-ins."""
    layers = []
    parts = dict(twin.named_modules())
    for path, (kind, slots) in chosen.items():
        part = parts[path]
        layer = kind(part, slots)
        body: dict[str, Any] = {"forward": _call(layer), "flatten_parameters": lambda self: None}
        for name in slots:
            del part._parameters[name]
            body[name] = property(_trap(slots[name]))
        part.__class__ = type(type(part).__name__, (type(part),), body)
        layers.append(layer)
    return layers


def _call(layer: TapedLayer) -> Callable[..., Any]:
    kind = type(layer.module).__name__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return lifted(layer, kind, layer.places, args, kwargs) if inside() else layer(*args, **kwargs)

    return call


def _trap(slot: str) -> Callable[[Any], Any]:
    def trap(self: Any) -> Any:
        raise Unsupported(f"the model uses {slot} directly, not through its layer")

    return trap
