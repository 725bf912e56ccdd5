"""Check whether a model is fit for private training, once, before the first broadcast.

Every trainable parameter must be a float and have a part in the output, no buffer may change in training (it would
carry private data around the noise), and no sample's output may depend on another sample. Every error names the path of
the module and what `--fix-model` would do about it.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from sordino.core.errors import ModelError
from sordino.core.state import Snapshot

MANY = 20  # batch size that reveals layers which behave differently on large batches


def fix(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return a copy without BatchNorm, running statistics and in-place activations, and a list of the changes."""
    module, notes = copy.deepcopy(module), []
    for path, layer in list(module.named_modules()):
        if isinstance(layer, _BatchNorm):
            # without spatial dimensions a group must hold several channels, or its output would always be zero
            groups = 1 if isinstance(layer, nn.BatchNorm1d) else math.gcd(32, layer.num_features)
            group_norm = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
            _replace(module, path, group_norm)
            notes.append(f"{path}: {type(layer).__name__} -> GroupNorm({groups}, {layer.num_features})")
        elif isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
            notes.append(f"{path}: running statistics off")
        elif getattr(layer, "inplace", False):
            layer.inplace = False
            notes.append(f"{path}: inplace=True -> inplace=False")
    return module, notes


def _replace(module: nn.Module, path: str, layer: nn.Module) -> None:
    if not path:
        raise ModelError("the model itself is a BatchNorm layer; there is nothing else to train.")
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)


def validate(module: nn.Module, sample: Tensor) -> None:
    """Raise ModelError unless the module can be trained privately; `sample` is a small batch of inputs."""
    _check_parameters(module)
    _check_layers(module)
    with Snapshot(module):  # restores state that the model's code keeps elsewhere
        _check_behaviour(copy.deepcopy(module), sample)
        _check_gradients(copy.deepcopy(module), sample)


def _check_parameters(module: nn.Module) -> None:
    trainable = 0
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ModelError(f"parameter {name} has no shape yet. Call the model once before training it.")
        if not parameter.requires_grad:
            continue
        if parameter.dtype != torch.float32:
            raise ModelError(f"parameter {name} is {parameter.dtype}; trainable parameters must be float32.")
        if not torch.isfinite(parameter).all():
            raise ModelError(f"parameter {name} starts with a nan or infinite value.")
        trainable += parameter.numel()
    if not trainable:
        raise ModelError("the model has no trainable parameter: all are frozen, or there are none.")


def _check_layers(module: nn.Module) -> None:
    for path, layer in module.named_modules():
        kind = type(layer).__name__
        if isinstance(layer, _BatchNorm):
            raise ModelError(
                f"{path or 'the model'} is {kind}: it mixes the records of a batch, so no record's share can be "
                "clipped. Use GroupNorm, or --fix-model (fix_model=True) to swap it."
            )
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise ModelError(
                f"{path}: {kind} keeps running statistics of private data. Set track_running_stats=False, or "
                "--fix-model (fix_model=True)."
            )
        if getattr(layer, "inplace", False):
            raise ModelError(
                f"{path}: {kind}(inplace=True) overwrites what per-record gradients need. Set inplace=False, or "
                "--fix-model (fix_model=True)."
            )


def _check_behaviour(module: nn.Module, sample: Tensor) -> None:
    before = {name: b.clone() for name, b in module.named_buffers()}
    module.train()
    with torch.random.fork_rng(devices=[]):
        seed = torch.manual_seed if sample.is_cuda else torch.default_generator.manual_seed
        seed(0)  # without a GPU torch.manual_seed takes many times as long
        try:
            with torch.no_grad():
                module(sample)
                module.eval()  # dropout off: outputs must now be reproducible
                together, alone = module(sample), module(sample[:1])
                many = module(sample.repeat(-(-MANY // len(sample)), *(1,) * (sample.dim() - 1))[:MANY])
                again = module(sample)
        except Exception as error:  # whatever the user's forward raises
            line = (str(error) or type(error).__name__).splitlines()[0]
            raise ModelError(f"the model cannot take a batch of shape {tuple(sample.shape)}: {line}") from error
    if not isinstance(together, Tensor) or len(together) != len(sample):
        raise ModelError("the model must return one tensor with one row per record.")
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ModelError(
                f"buffer {name} ({buffer.dtype}) changes in training and would carry private data past the noise. "
                "Remove the layer that updates it, or --fix-model (fix_model=True)."
            )
    scale = max(1.0, float(together[:1].abs().max()) if together.numel() else 1.0)
    if not torch.allclose(together, again, atol=1e-3 * scale, rtol=1e-3):
        raise ModelError(
            "the model's outputs for the same records change from call to call, so it keeps something of what it has"
            " seen. Let forward depend on its inputs and parameters alone."
        )
    for other in (alone, many[:1]):
        if other.shape != together[:1].shape or not torch.allclose(together[:1], other, atol=1e-3 * scale, rtol=1e-3):
            raise ModelError(
                "a record's output depends on the other records of its batch; no record can be clipped on its own."
            )


def _check_gradients(module: nn.Module, sample: Tensor) -> None:
    """Raise ModelError if a trainable parameter has no part in the output: noise alone would train it."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        out = module.train()(sample)
        if not out.requires_grad:
            raise ModelError("the model's output does not depend on any trainable parameter: is forward under no_grad?")
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        gradients = torch.autograd.grad(out.sum(), [p for _, p in parameters], allow_unused=True)
    if unused := [name for (name, _), gradient in zip(parameters, gradients, strict=True) if gradient is None]:
        more = f" (and {len(unused) - 1} more)" if len(unused) > 1 else ""
        raise ModelError(
            f"parameter {unused[0]}{more} has no part in the model's output, so it would be trained by noise alone. "
            "Freeze it with requires_grad_(False), or remove it."
        )
