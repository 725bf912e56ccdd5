"""What gradient attacks share: reading a client's gradient off a view, repeating its local steps, and matching them.

After one step of SGD over all its records a client's update is -learning_rate times its mean gradient. After several
steps the update is -learning_rate times the sum of the gradients along the path, which an attacker repeats with its own
records in place of the client's (Geiping et al. 2020, arXiv:2003.14053, Section 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from sordino.attacks.base import Knowledge, Victim, single_rows
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import Model
from sordino.core.vector import Layout
from sordino.core.view import View

Loss = Callable[[Tensor, slice], Tensor]  # predictions and the records that they are for -> mean loss
CLOSE, STALLED = 1e-12, 1e-7  # relative squared distance that is zero, and change of it that is none
PLAIN = ("sgd", "momentum")  # optimisers whose first step is the learning rate times the gradient


@dataclass(frozen=True)
class Leak:
    """A client's update as an attacker reads it."""

    params: Tensor  # [dim]: the model that was sent to the client
    gradient: Tensor  # [dim]: sum of the mean gradients of its local steps
    steps: int = 1
    batch: int | None = None  # records of one local step; None: all
    rate: float = 1.0  # learning rate
    weight_decay: float = 0.0


def leak(name: str, views: Sequence[View], knowledge: Knowledge, victim: Victim, field: str) -> Leak:
    """Return what a view tells of the victim's gradient; raise SpecError if it holds no message of the victim.

    Behind a secure sum, the sum of all clients is read as the update of one large client.
    """
    knowledge.need(name, local="turn an update into a gradient")
    local = knowledge.local
    if local is None:
        raise SpecError(f"{name} needs the settings of the clients' training.")
    steps = local.count(victim.records)
    if local.optimizer not in PLAIN or (steps > 1 and local.optimizer != "sgd"):
        raise SpecError(
            f"{name} repeats local steps of plain SGD; {steps} of {local.optimizer} cannot be read as gradients. "
            "Attack a run with optimizer = sgd."
        )
    view = _view(name, views, victim, field)
    update = _update(name, view, victim, field)
    batch = None if local.rate(victim.records) >= 1 else max(1, round(local.expected_batch(victim.records)))
    rate = local.learning_rate
    return Leak(view.state.params, -update / rate, steps, batch, rate, local.weight_decay)


def _view(name: str, views: Sequence[View], victim: Victim, field: str) -> View:
    for view in views:
        if view.round == victim.round and view.seen is not None and field in view.seen.fields:
            return view
    rounds = sorted({view.round for view in views})
    raise SpecError(
        f"{name}: no view of round {victim.round} holds a message with the field {field}; "
        f"there are views of rounds {rounds[0]} to {rounds[-1]}."
    )


def _update(name: str, view: View, victim: Victim, field: str) -> Tensor:
    seen = view.seen
    if seen is not None and (seen.summed or victim.client is None):
        return _mean(seen, field, len(view.cohort or (0,)))
    ids, rows = single_rows(name, view, field)
    at = [k for k, client in enumerate(ids) if int(client) == victim.client]
    if not at:
        raise SpecError(
            f"{name}: client {victim.client} sent no message in round {victim.round}; "
            f"{', '.join(map(str, ids[:10]))} did."
        )
    heavy, weight = seen is not None and seen.heavy, None if seen is None else seen.weight
    return rows[at[0]] if not heavy or weight is None else rows[at[0]] / weight[at[0]]


def _mean(seen: Message, field: str, clients: int) -> Tensor:
    total = seen.total(field)
    weight = float(clients) if total.weight is None else float(total.weight[0])
    return total.fields[field][0] / weight


def simulated(model: Model, leak: Leak, x: Tensor, loss: Loss) -> Tensor:
    """Return the sum of gradients [dim] that a client with records x would send; it can be differentiated in x.

    Args:
        model: the network.
        leak: where the client started, its number of steps, batches and learning rate.
        x: the attacker's records, in the order in which the client is taken to use them.
        loss: mean loss of predictions for a slice of the records.
    """
    weights = {k: v.detach().requires_grad_() for k, v in model.layout.views(leak.params).items()}
    parts = _parts(len(x), leak)
    total: list[Tensor] = []
    for number in range(leak.steps):
        part = parts[number % len(parts)]
        value = loss(functional_call(model.module, weights, (x[part],)), part)
        gradients = torch.autograd.grad(value, list(weights.values()), create_graph=True)
        if leak.weight_decay:
            moves = zip(gradients, weights.values(), strict=True)
            gradients = tuple(g + leak.weight_decay * w for g, w in moves)
        total = [a + b for a, b in zip(total, gradients, strict=True)] if total else list(gradients)
        if number + 1 < leak.steps:
            weights = {k: w - leak.rate * g for (k, w), g in zip(weights.items(), gradients, strict=True)}
    return torch.cat([g.reshape(-1) for g in total])


def _parts(records: int, leak: Leak) -> list[slice]:
    width = leak.batch or records
    return [slice(start, min(start + width, records)) for start in range(0, records, width)]


def hard(model: Model, y: Tensor) -> Loss:
    """Return the mean loss of the model for known labels."""
    return lambda predictions, part: model.loss(predictions, y[part]).mean()


def soft(logits: Tensor) -> Loss:
    """Return the mean cross-entropy for labels that are optimised too: softmax(logits)."""

    def loss(predictions: Tensor, part: slice) -> Tensor:
        return -(logits[part].softmax(dim=1) * predictions.log_softmax(dim=1)).sum(dim=1).mean()

    return loss


# --- labels


def label_gradients(rows: Tensor, layout: Layout) -> tuple[Tensor, bool]:
    """Return a number for each row and class [rows, classes], lowest at the label, and whether it is a bias gradient.

    The gradient of cross-entropy in the bias of the last layer is the mean of p - onehot(y). That of the weights is,
    for one record, this times the features: the label's row points away from the rows of all other classes, which agree
    with each other (Zhao et al. 2020, Eq. 4), so without a bias the cosines with the other rows are added.
    """
    views = layout.views(rows)
    last = next((s.name for s in reversed(layout.slots) if len(s.shape) == 2), None)
    if last is None:
        raise SpecError("labels are read off the last linear layer, and this model has none.")
    bias = views.get(last.removesuffix("weight") + "bias")
    if bias is not None:
        return bias, True
    unit = torch.nn.functional.normalize(views[last], dim=-1, eps=1e-30)
    return (unit @ unit.transpose(-1, -2)).sum(dim=-1), False


def single_labels(rows: Tensor, layout: Layout) -> Tensor:
    """Return the label of the one record behind each gradient [rows]: exact (Zhao et al. 2020, arXiv:2001.02610)."""
    return label_gradients(rows, layout)[0].argmin(dim=-1)


def batch_labels(model: Model, leak: Leak, records: int, guess: Tensor) -> Tensor:
    """Return the most likely labels of a batch [records], in ascending order.

    The bias gradient is mean(p) - counts / records. The mean prediction p is taken from guessed records (auxiliary
    ones, or noise), as in Wainakh et al. (2022), arXiv:2105.09369, Section 4.
    """
    if records == 1:
        return single_labels(leak.gradient[None], model.layout)
    rows, exact = label_gradients(leak.gradient[None] / leak.steps, model.layout)
    if not exact:
        raise SpecError("labels of a batch are read off the bias of the last layer, which has none: give the labels.")
    slope = rows[0]
    with torch.no_grad():
        p = functional_call(model.module, model.layout.views(leak.params), (guess,)).softmax(dim=1).mean(dim=0)
    counts = (p - slope).clamp_min(0)
    counts = counts * records / counts.sum().clamp_min(1e-30)
    whole = counts.floor()
    most = (counts - whole).argsort(descending=True)  # the largest remainders get what is left
    whole[most[: int(records - whole.sum())]] += 1
    return torch.arange(len(whole), device=whole.device).repeat_interleave(whole.long())


# --- distances


def squared(made: Tensor, true: Tensor) -> Tensor:
    """Return the squared distance of two gradients, as a share of the true one's squared length."""
    return (made - true).square().sum() / true.square().sum().clamp_min(1e-30)


def cosine(made: Tensor, true: Tensor, layout: Layout | None = None) -> Tensor:
    """Return one minus the cosine of two gradients; with a layout, the mean of this over the layers."""
    parts = [slice(0, len(true))] if layout is None else list(layout.layers().values())
    values = [1 - torch.cosine_similarity(made[part], true[part], dim=0, eps=1e-12) for part in parts]
    return torch.stack(values).mean()


def total_variation(x: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels; 0 for records that are not pictures."""
    if x.ndim != 4:
        return x.new_zeros(())
    return x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()


def lbfgs(free: list[Tensor], leak: Leak, model: Model, loss: Loss, iterations: int) -> float:
    """Minimise the distance of gradients over `free`, in place; the first of these are the records.

    Returns:
        The least squared distance; infinite if the search left the finite numbers.
    """
    for value in free:
        value.requires_grad_()
    search = torch.optim.LBFGS(free, lr=1.0, history_size=100, line_search_fn="strong_wolfe")

    def distance() -> Tensor:
        value = squared(simulated(model, leak, free[0], loss), leak.gradient)
        for one, slope in zip(free, torch.autograd.grad(value, free), strict=True):
            one.grad = slope
        return value.detach()

    last = math.inf
    for _ in range(iterations):
        before = float(search.step(distance))  # the distance before the step
        if not math.isfinite(before):
            return math.inf
        if before < CLOSE or abs(last - before) < STALLED * before:
            break
        last = before
    return float(distance())


def milestones(iterations: int) -> tuple[int, ...]:
    """Return when the learning rate falls by ten: after 3/8, 5/8 and 7/8 (Geiping et al. 2020, published code)."""
    return tuple(iterations * k // 8 for k in (3, 5, 7))
