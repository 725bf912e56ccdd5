"""Shared code of the methods as printed that measure their sensitivity on the batch.

It provides the norm of every record's gradient, noise in proportion to it, and the noise scale that the moments
accountant would find if that norm were a bound.

The papers add noise to gradients. Comparisons in federated learning do not always say whether that happens in every
local step or once an upload, so `noised` says where:

    step    to the gradient sum of every local step: the noise has standard deviation sigma S, where S is what the paper
            takes for the sensitivity, and sigma counts all steps of the run as sampled Gaussians
    upload  once to the update, after local steps without noise: standard deviation sigma S eta E / b, where eta is the
            learning rate, E the number of passes over the records, b the expected batch and S the largest one of the
            round's steps; sigma counts one Gaussian without sampling a round

eta E / b is how far a record with gradients of norm 1 moves the weights in E passes of plain SGD if all other gradients
stay as they are. Public code adds noise to uploads in this proportion (eta S / b in one step). That is no bound, not
even for a correct S: the record changes the weights, and with them all later gradients. Adam and RMSprop moreover do
not scale with the gradient, so that the same noise is small beside their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from sordino.contract.method import Plan, Release, Site
from sordino.core.errors import SpecError
from sordino.core.types import Batch, Model, Rows, State
from sordino.privacy.calibrate import noise_multiplier
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Composed, Event, GaussianEvent, Repeated, Sampled
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven

NOISED = ("step", "upload")  # where noise is added
OF_UPLOADS = (
    "; and the noise is added once to an update of many steps, in which a record moves the later gradients as well"
)
NUMBERS = 2**24  # numbers of per-record gradients in memory at once
ON_GPU = 4  # times as many on a GPU, where many small products take longer than few large ones


@dataclass(frozen=True)
class Measured(Bounded):
    """Sums with a "sensitivity" that depends on the records in them: it is not a bound on anything."""

    spread: Tensor = field(default_factory=lambda: torch.zeros(0))  # [clients, 1] or [clients, dim]


def sums_and_norms(
    weights: Tensor,
    batch: Batch,
    model: Model,
    seeds: Sequence[int],
    clip: float | None,
    layers: Sequence[float] | None = None,
) -> tuple[Rows, Tensor]:
    """Return each client's sum of (clipped) per-record gradients, and the norms of these gradients.

    Args:
        weights: Parameters [dim] or [clients, dim].
        batch: Records of all clients.
        model: The model.
        seeds: One seed per client, for randomness in the model.
        clip: Clip bound of a record's gradient, or None.
        layers: Clip bounds of each layer's part, if layers are clipped separately.

    Returns:
        Sums [clients, dim] and norms [records, parts]: one norm of the whole gradient, or one per layer if `layers` is
        given.
    """
    dim = model.layout.dim
    parts = [slice(0, dim)] if layers is None else list(model.layout.layers().values())
    device = batch.x.device
    sizes = torch.tensor(batch.sizes, device=device, dtype=torch.int64)
    owner = torch.arange(len(batch.sizes), device=device).repeat_interleave(sizes)
    place = torch.arange(len(owner), device=device) - (sizes.cumsum(0) - sizes)[owner]
    sums, norms = weights.new_zeros(len(batch.sizes), dim), weights.new_zeros(len(owner), len(parts))
    most = NUMBERS * (ON_GPU if device.type == "cuda" else 1)
    for index in torch.arange(len(owner), device=device).split(max(1, most // max(dim, 1))):
        client = owner[index]
        if not len(client):  # all batches are empty
            break
        # treat every record as a separate client with its own seed
        places = zip(client.tolist(), place[index].tolist(), strict=True)
        drawn = [(seeds[k] + 0x9E3779B97F4A7C15 * i) % 2**63 for k, i in places]
        records = Batch(batch.x[index], batch.y[index], (1,) * len(index))
        used = weights if weights.ndim == 1 else weights.expand(len(batch.sizes), -1)[client]
        rows = model.gradients.sums(used, records, clip, seeds=drawn, layers=layers)
        first, last = int(client[0]), int(client[-1]) + 1
        belongs = torch.arange(first, last, device=device)[:, None] == client
        sums[first:last] += belongs.to(rows.dtype) @ rows
        norms[index] = torch.stack([rows[:, part].norm(dim=1) for part in parts], dim=1)
    return sums, norms


def of_clients(norms: Tensor, sizes: Sequence[int], what: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a statistic of each client's norms [clients, parts]; 0 for a client without records."""
    statistics = [what(part) if len(part) else part.new_zeros(part.shape[1]) for part in norms.split(list(sizes))]
    return torch.stack(statistics) if statistics else norms.new_zeros(0, norms.shape[1])


def sigma(plan: Plan, factor: Callable[[int], float] = lambda t: 1.0, noised: str = "step") -> float:
    """Return the smallest sigma for which Gaussians of multipliers sigma factor(t) cost (epsilon, delta).

    The cost is that of the whole run: of one sampled Gaussian a step or, with `noised` = "upload", of one Gaussian a
    round. We use our accountant in place of the papers' moments accountant, which would require a slightly larger
    sigma.
    """
    dearest = sorted(factor(t) for t in range(plan.rounds))[: plan.participations]
    rate, steps = counted(plan, noised)
    return _least(plan.epsilon, plan.delta, rate, steps, tuple(dearest))


def counted(plan: Plan, noised: str) -> tuple[float, int]:
    """Return the sampling rate and the number of uses of the noise that a paper accounts for in one round."""
    if noised == "upload":
        return 1.0, 1
    return max(plan.local.rate(n) for n in plan.sizes), plan.local.count(plan.smallest_client)


def upload(why_not: str) -> tuple[Release, ...]:
    """Declare the release of a noisy update, whose noise has no proof."""
    return (Release("update", Unproven(why_not, Gaussian(1.0)), "record", key="train/noise"),)


def reach(state: State, site: Site) -> Tensor:
    """Return eta E / b of every client [clients, 1], for all of its local steps."""
    local = site.plan.now(state)
    each = [local.learning_rate * local.count(n) * local.rate(n) / local.expected_batch(n) for n in site.data.sizes]
    return torch.tensor(each).to(state.params)[:, None]


class Largest:
    """The largest S of each client over the local steps, which leave their sums without noise."""

    def __init__(self) -> None:
        self.spread: Tensor | None = None

    def saw(self, spread: Tensor) -> None:
        """Take account of the S of one step."""
        self.spread = spread if self.spread is None else torch.maximum(self.spread, spread)

    def noisy(self, rows: Rows, scale: Tensor | float, state: State, site: Site) -> Rows:
        """Return the updates with noise of standard deviation scale S eta E / b."""
        spread = rows.new_zeros(len(rows), 1) if self.spread is None else self.spread
        return site.out["update"](Bounded(rows, 1.0), multiplier=scale * spread * reach(state, site))


@lru_cache(maxsize=64)
def _least(epsilon: float, delta: float, rate: float, steps: int, factors: tuple[float, ...]) -> float:
    def run(z: float) -> Event:
        each = [GaussianEvent(z * f) for f in factors]
        return Composed(tuple(Repeated(g if rate >= 1 else Sampled(g, rate), steps) for g in each))

    return noise_multiplier(run, epsilon, delta)


def require_plain(plan: Plan) -> None:
    """Raise an error if the plan uses several views per record."""
    if plan.local.views > 1:
        raise SpecError("this method looks at the gradient of every record as it is: use views = 1.")
