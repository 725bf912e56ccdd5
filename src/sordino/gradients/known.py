"""The closed list of modules and losses that are known to treat the records of a batch independently.

This holds for every batch size. Modules are matched by exact type, since a subclass may compute something else, and
only if unmodified: a layer with a hook or with its own forward counts as user code. Anything not on the list is given
its records one by one (see `alone`). Layers that can be configured to work along the first dimension, such as Softmax,
are left out on purpose.
"""

from __future__ import annotations

import types

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sordino.core.types import SampleLoss
from sordino.gradients.layers import LAYERS, RANDOM

HERE = "sordino"  # Sordino's own models, layers and losses
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
ELEMENTWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink,
    nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Threshold,
)  # fmt: skip
POOLING = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    nn.LPPool1d, nn.LPPool2d, nn.Upsample,
)  # fmt: skip
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # only if frozen, a fixed map
TYPES = frozenset((*CONTAINERS, *ELEMENTWISE, *POOLING, *BATCH_NORMS, nn.Flatten, *LAYERS, *RANDOM))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", *(BACKWARD := ("_backward_hooks", "_backward_pre_hooks")))


def known_module(module: nn.Module) -> bool:
    """Return whether every part of the module is on the closed list and unmodified."""
    return all(_known(part) for part in module.modules())


def known_loss(loss: SampleLoss) -> bool:
    """Return whether the loss is one of Sordino's own: a function without a closure, or an object of constants."""
    if isinstance(loss, types.FunctionType):
        return _ours(loss) and loss.__closure__ is None
    numbers = getattr(loss, "weights", None)  # of WeightedCrossEntropy; an object that holds other code is not known
    return _ours(type(loss)) and list(vars(loss)) == ["weights"] and isinstance(numbers, tuple)


def hooked(module: nn.Module) -> bool:
    """Return whether any part of the module has a backward hook."""
    return any(getattr(part, name, None) for part in module.modules() for name in BACKWARD)


def _known(part: nn.Module) -> bool:
    if "forward" in vars(part) or any(getattr(part, name, None) for name in HOOKS):
        return False
    if isinstance(part, nn.Flatten) and part.start_dim < 1:
        return False
    if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
        return False
    return type(part) in TYPES or _ours(type(part))


def _ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == HERE
