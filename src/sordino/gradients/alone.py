"""Run user code on every record separately, as batches of one, while computing on the whole batch at once.

`torch.func.vmap` applies a function of one record to all records in a single call. Inside it a batch has one record,
whatever its real length: a mean over the batch is the record itself, and a condition on the number of records always
has the same outcome. A record's loss is therefore a function of that record by construction, for every batch size, and
nothing has to be probed.

Layers with a book-keeping rule are `lifted` out of vmap: they process the whole batch, as they always do. vmap runs
only what lies between them (activations, residual connections, attention).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from sordino.core.errors import ModelError
from sordino.gradients.tape import Unsupported

Flat = Callable[..., tuple[Tensor, ...]]  # a function of tensors [records, ...]


class _Here(threading.local):
    mark: Tensor | None = None  # zeros [records]; code run by `alone` sees a scalar


_here = _Here()


def inside() -> bool:
    """Return whether the current code is being run by `alone`."""
    return _here.mark is not None


def alone(function: Callable[..., Any], what: str, *values: Tensor) -> Tensor:
    """Apply a batch function to each record separately and stack the results.

    Args:
        function: takes batches and returns a tensor with one row per record.
        what: what the function is called in error messages.
        values: tensors [records, ...].
    """

    def per_record(mark: Tensor, *rows: Tensor) -> Tensor:
        _here.mark = mark
        try:
            return single(function(*(row.unsqueeze(0) for row in rows)), what)
        finally:
            _here.mark = None

    marks = torch.zeros(values[0].shape[0], device=values[0].device)
    with _Attention():
        out: Tensor = vmap(per_record, randomness="different")(marks, *values)
    return out


def single(made: Any, what: str) -> Tensor:
    """Return the only row of a batch of one; raise `ModelError` if `made` is not such a batch."""
    if not isinstance(made, Tensor) or made.dim() == 0 or made.shape[0] != 1:
        given = list(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ModelError(
            f"{what} must give one row a sample, for a single one a tensor [1, ...], not {given}; with torch's losses"
            " use reduction='none'."
        )
    return made.squeeze(0)


class Lift(torch.autograd.Function):
    """Run a function of whole batches inside `alone`; autograd differentiates the function as usual."""

    @staticmethod
    def forward(function: Flat, mark: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        """Refuse to run outside vmap."""
        raise Unsupported("a layer is called outside of the model's forward")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: `forward` is never run."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Flat, mark: Tensor, *values: Tensor) -> tuple[Any, Any]:
        """Call the function on the values of all records at once."""
        if in_dims[1] is None:  # the model's own vmap, not the one over records
            raise Unsupported("a layer is called inside of torch.func.vmap")
        rows = [
            value.movedim(place, 0) if place is not None else value.expand(info.batch_size, *value.shape)
            for value, place in zip(values, in_dims[2:], strict=True)
        ]
        out = function(*rows)
        return out, (0,) * len(out)


def lifted(function: Callable[..., Any], kind: str, places: tuple[int, int], args: Any, kwargs: Any) -> Any:
    """Call function(*args, **kwargs) on the whole batch from inside `alone`.

    Args:
        function: a layer that takes whole batches.
        kind: the name of the layer's type, for error messages.
        places: the dimension of the records in the first tensor, and in all other tensors.
        args: positional arguments, in which each tensor holds one record.
        kwargs: keyword arguments, likewise.
    """
    leaves, spec = tree_flatten((args, kwargs))
    which = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for i, place in zip(which, _places(places, len(which)), strict=True):
        rows = leaves[i].shape[place] if leaves[i].dim() > place else "no"
        if rows != 1:
            raise Unsupported(f"a {kind} layer is given {rows} rows for one sample")
    specs: list[Any] = []

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        for i, place, value in zip(which, _places(places, len(which)), values, strict=True):
            leaves[i] = value.squeeze(1 + place).movedim(0, place)
        positional, named = tree_unflatten(leaves, spec)
        made, form = tree_flatten(function(*positional, **named))
        specs.append(form)
        pairs = zip(made, _places(places, len(made)), strict=True)
        return tuple(part.movedim(place, 0).unsqueeze(1 + place) for part, place in pairs)

    made = Lift.apply(flat, _here.mark, *(leaves[i] for i in which))  # type: ignore[no-untyped-call]
    return tree_unflatten(made, specs[0])


def _places(places: tuple[int, int], many: int) -> list[int]:
    return [places[min(n, 1)] for n in range(many)]


class _Attention(TorchFunctionMode):
    """Run fused attention on the whole batch: vmap has no rule for its kernels and would loop over records.

    All dimensions except the heads and the last two are independent of each other, so the records can be one more.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention or not inside() or args[0].dim() != 4:
            return func(*args, **(kwargs or {}))
        return _attention(*args, **(kwargs or {}))


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **more: Any
) -> Tensor:
    rows = query.shape[0]  # rows of one record
    masks = () if attn_mask is None else (attn_mask[(None,) * (4 - attn_mask.dim())].expand(rows, -1, -1, -1),)

    def flat(*values: Tensor) -> tuple[Tensor]:
        q, k, v, *mask = (part.flatten(0, 1) for part in values)
        output = F.scaled_dot_product_attention(q, k, v, mask[0] if mask else None, *rest, **more)
        return (output.unflatten(0, (-1, rows)),)

    made: tuple[Tensor] = Lift.apply(flat, _here.mark, query, key, value, *masks)  # type: ignore[no-untyped-call]
    return made[0]
