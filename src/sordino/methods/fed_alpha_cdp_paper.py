"""Fed-alpha-CDP as printed.  Wei, Liu, Zhou, Chow, Wu (2023), "Securing distributed SGD against gradient leakage
threats", IEEE TPDS 34, arXiv:2305.06473; unit record, viewer server; the claim does not hold.

At every local step each layer's part of a record's gradient is clipped to C. The largest norm S_l of layer l among the
records of the batch is taken as its sensitivity, and layer l gets noise N(0, (sigma_t S_l)^2), where sigma_t falls over
the rounds (shapes as in `dp-dyns`). The paper uses the moments accountant as if S were a bound; we calibrate sigma with
our accountant for the sampled Gaussian. `reading` says where the noise is added:

    example  to every record's gradient before averaging, as printed (from memory): sigma_t S sqrt(batch) in the sum,
             which is more than is accounted for
    sum      once to the sum, as in the authors' public code (git-disl/Fed-alphaCDP)

In that code S is the mean over the records of each record's largest layer norm, clamped to [0.1, 32], which is private
as well. With `noised = upload` noise is added once to the update (_measured.py), and `reading` has no effect.

Not sound: S_l is computed from the batch, and the scale of the noise reveals it; also, the square root of the number of
layers is left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.contract.method import Claim, Plan
from sordino.core import check
from sordino.core.types import Batch, Model
from sordino.methods._measured import Measured, of_clients, sums_and_norms
from sordino.methods.dp_dyns_paper import DpDynsPaper

__all__ = ["FedAlphaCdpPaper"]

READINGS = ("example", "sum")
WHY_NOT = (
    "the noise of a layer is scaled by its largest gradient norm in the batch: if that layer's gradients are zero for "
    "all records but one, there is noise with that record and none without it, so delta is 1"
)


@dataclass(frozen=True)
class FedAlphaCdpPaper(DpDynsPaper):
    """Fed-alpha-CDP as printed; its claim does not hold."""

    clip: float = 1.0  # C: bound on the L2 norm of each layer's part of one record's gradient
    reading: str = "example"  # where the noise is added: example or sum

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(READINGS, reading=self.reading)

    def reason(self) -> str:
        return WHY_NOT

    def measured(self, weights: Tensor, batch: Batch, model: Model, seeds: list[int]) -> Measured:
        """Return the sums of gradients clipped by layer, with S_l as the measured sensitivity of each layer."""
        layers = model.layout.layers()
        sums, norms = sums_and_norms(weights, batch, model, seeds, None, [self.clip] * len(layers))
        largest = of_clients(norms, batch.sizes, lambda part: part.amax(dim=0))
        if self.reading == "example" and self.noised == "step":
            largest = largest * torch.tensor(batch.sizes).to(largest)[:, None].sqrt()
        widths = torch.tensor([part.stop - part.start for part in layers.values()], device=largest.device)
        return Measured(sums, 1.0, spread=largest.repeat_interleave(widths, dim=1))

    def claim(self, plan: Plan) -> Claim:
        return Claim(plan.epsilon, plan.delta, "Wei et al. (2023)", self.why_not())
