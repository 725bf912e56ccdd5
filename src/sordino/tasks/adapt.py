"""Prepare a pretrained model for private training of a part of its parameters.

The fewer parameters are trained, the less noise there is: noise is added to every trainable parameter, while frozen
parameters are public constants. There are three ways; each returns a copy and leaves the caller's model unchanged:

    freeze  train the parameters below some names and nothing else
    head    train a fresh last layer on a frozen backbone
    lora    train small low-rank additions to frozen layers; Hu et al. (2021), arXiv:2106.09685

What was learnt privately costs no further privacy (post-processing): `merge_lora` folds the additions into plain
layers. A frozen BatchNorm becomes the fixed affine map that it is in eval mode, so that it neither mixes records nor
changes; its entries in the state dict keep their names. In-place activations are switched off. If the model was
pretrained on private data, no epsilon of a run covers that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.init import skip_init

from sordino.core import check
from sordino.core.errors import ModelError
from sordino.core.rng import Stream

__all__ = ["freeze", "head", "lora", "merge_lora"]


class FrozenNorm(nn.Module):
    """BatchNorm fixed in eval mode: y = (x - mean) / sqrt(variance + eps) * weight + bias, all buffers."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        for name, value in norm.state_dict().items():
            self.register_buffer(name, value.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Apply the affine map to x [n, channels, ...]."""
        scale = (self.running_var + self.eps).rsqrt()
        if "weight" in self._buffers:
            scale = scale * self.get_buffer("weight")
        shift = -self.running_mean * scale
        if "bias" in self._buffers:
            shift = shift + self.get_buffer("bias")
        wide = (1, -1, *(1,) * (x.dim() - 2))
        return x * scale.view(wide) + shift.view(wide)


class LowRank(nn.Module):
    """Frozen layer W with a trainable low-rank addition: W x + scale up(down(x)), where up starts at zero (eq. 3)."""

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int, alpha: float, rng: Stream) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down: nn.Linear | nn.Conv2d
        self.up: nn.Linear | nn.Conv2d
        if isinstance(base, nn.Linear):
            self.down = skip_init(nn.Linear, base.in_features, rank, bias=False)
            self.up = skip_init(nn.Linear, rank, base.out_features, bias=False)
        else:
            geometry = (base.kernel_size, base.stride, base.padding, base.dilation)
            self.down = skip_init(nn.Conv2d, base.in_channels, rank, *geometry, bias=False)
            self.up = skip_init(nn.Conv2d, rank, base.out_channels, 1, bias=False)
        self.down.to(base.weight)
        self.up.to(base.weight)
        draw = rng.rows([0]).normal(self.down.weight.numel(), self.down.weight).view_as(self.down.weight)
        self.down.weight.data.copy_(draw / self.down.weight[0].numel() ** 0.5)
        nn.init.zeros_(self.up.weight)

    @property
    def weight(self) -> Tensor:
        """Weight of base, down and up combined; also serves code that reads a layer's weight directly."""
        added = self.up.weight.flatten(1) @ self.down.weight.flatten(1)
        return self.base.weight + self.scale * added.view_as(self.base.weight)

    @property
    def bias(self) -> Tensor | None:
        """Bias of the base layer."""
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the frozen layer plus the low-rank addition."""
        y: Tensor = self.base(x) + self.scale * self.up(self.down(x))
        return y


def freeze(module: nn.Module, train: Sequence[str]) -> nn.Module:
    """Return a copy that trains only the parameters at or below the names in `train`.

    The name "fc" stands for fc.weight and fc.bias, but not for fc2.
    """
    if isinstance(train, str):
        raise ModelError(f"train must be a list of names, not the text {train!r}; write [{train!r}].")
    module = copy.deepcopy(module)
    _known(train, [name for name, _ in module.named_parameters()])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(any(_below(name, prefix) for prefix in train))
    return _settled(module)


def head(module: nn.Module, path: str, outputs: int) -> nn.Module:
    """Return a copy with a fresh linear layer, initialised to zero, and everything else frozen.

    Args:
        module: the model.
        path: name of the linear layer to replace, usually the last one.
        outputs: number of outputs of the fresh layer.
    """
    check.count(outputs=outputs)
    layers = dict(module.named_modules())
    if not path or path not in layers:
        raise ModelError(f"the model has no layer {path!r}.{_near(path, layers)}")
    old = layers[path]
    if not isinstance(old, nn.Linear):
        raise ModelError(f"{path} is {type(old).__name__}; a head takes the place of a Linear. Name the last Linear.")
    fresh = skip_init(nn.Linear, old.in_features, outputs).to(old.weight)
    nn.init.zeros_(fresh.weight)
    nn.init.zeros_(fresh.bias)
    module = copy.deepcopy(module)
    _put(module, path, fresh)
    return freeze(module, [path])


def lora(
    module: nn.Module,
    rank: int = 4,
    alpha: float | None = None,
    targets: Sequence[str] | None = None,
    train: Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """Return a copy in which some layers have trainable low-rank additions and everything else is frozen.

    Subclasses of Linear and Conv2d may compute something else and are left unchanged.

    Args:
        module: the model.
        rank: rank of the additions.
        alpha: the additions are scaled by alpha / rank; equal to rank by default.
        targets: names of Linear or Conv2d layers, or of modules that contain some; by default every Linear outside
            `train`.
        train: names of parameters or modules that are trained as they are.
        seed: seed of the random down-projections, which are public.
    """
    check.count(rank=rank)
    if alpha is not None:
        check.positive(alpha=alpha)
    module, rng = freeze(module, train), Stream.research(seed)
    layers = dict(module.named_modules(remove_duplicate=False))  # a layer used in two places has two names
    _known(targets or (), [path for path in layers if path])
    kinds = (nn.Linear,) if targets is None else (nn.Linear, nn.Conv2d)
    made: dict[nn.Module, LowRank] = {}
    for path, layer in layers.items():
        wanted = targets is None or any(_below(path, target) for target in targets)
        if type(layer) in kinds and wanted and not any(_below(path, name) for name in train):
            if layer not in made:
                made[layer] = LowRank(_plain(path, layer), rank, float(alpha or rank), rng.at(path))
            if not path:
                return made[layer]
            _put(module, path, made[layer])
    if not made:
        raise ModelError("lora found no layer to adapt. Name Linear or Conv2d layers in targets.")
    return module


def _plain(path: str, layer: nn.Module) -> nn.Linear | nn.Conv2d:
    if isinstance(layer, nn.Conv2d) and (layer.groups > 1 or layer.padding_mode != "zeros"):
        raise ModelError(f"{path} is a Conv2d with groups or padding that is not zero. Leave it out of lora's targets.")
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        raise ModelError(f"{path} is {type(layer).__name__}; lora takes Linear and Conv2d.")
    return layer


def merge_lora(module: nn.Module) -> nn.Module:
    """Return a copy with every addition folded into its layer, with the speed and state dict names of the original."""

    def plain(layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, LowRank):
            return None
        merged = copy.deepcopy(layer.base)
        merged.weight.data.copy_(layer.weight.detach())
        return merged

    return _mapped(copy.deepcopy(module), plain)


def _settled(module: nn.Module) -> nn.Module:
    """Fix frozen BatchNorm layers in eval mode and switch in-place activations off; changes the module."""

    def settle(layer: nn.Module) -> nn.Module | None:
        if getattr(layer, "inplace", False):
            layer.inplace = False  # type: ignore[assignment]
        if not isinstance(layer, _BatchNorm) or any(p.requires_grad for p in layer.parameters()):
            return None
        if layer.running_mean is None:
            raise ModelError("a frozen BatchNorm keeps no running statistics, so it has no eval mode. Use GroupNorm.")
        return FrozenNorm(layer)

    return _mapped(module, settle)


def _mapped(module: nn.Module, new: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Return the module with each layer replaced by `new(layer)`, unless that is None; changes the module."""
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        made = new(layer)
        if made is not None and not path:
            return made
        if made is not None:
            _put(module, path, made)
    return module


def _put(module: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def _known(prefixes: Sequence[str], names: Sequence[str]) -> None:
    for prefix in prefixes:
        if not any(_below(name, prefix) for name in names):
            parents = {name.rpartition(".")[0] for name in names} - {""}
            raise ModelError(f"the model has nothing named {prefix!r}.{_near(prefix, [*names, *sorted(parents)])}")


def _near(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=3)
    return f" Did you mean {', '.join(near)}?" if near else ""
