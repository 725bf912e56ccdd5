"""Robust merges: how the server combines the clients' rows where some clients may be malicious.

    mean                 the weighted mean, which one client can move anywhere
    median               the weighted median of every coordinate: Yin et al. (2018), arXiv:1803.01498, Definition 1
    trimmed:SHARE        every coordinate without its SHARE largest and SHARE smallest values: Yin et al., Definition 2
    krum:F[:M]           the mean of the M rows (default 1) that are nearest to their N - F - 2 nearest rows, where at
                         most F of the N clients are malicious: Blanchard et al. (2017), arXiv:1703.02757, Section 3
    norm-bound:LENGTH    the mean of rows scaled down to L2 length LENGTH: Sun et al. (2019), arXiv:1911.07963

What a robust merge does to the guarantee:

- Rows to which clients added noise themselves are private before they are merged, and merging is post-processing: the
  guarantee against the server stands, with every merge.
- Against the public, a mean shows the noise of all clients at once, for which a direct channel gives credit. A robust
  merge may show a single row (Krum does), so that credit is not given: against the public a row costs what it costs
  against the server (`pricing.setting`: not linear).
- The noise of a trusted server is calibrated for a sum of which one client moves no more than its clip. A median, a
  trimmed mean or a choice of rows has another sensitivity, for which no noise is accounted: refused. Rows scaled to a
  bound are still within their clip, so norm-bound is allowed.
- Behind a secure sum there are no rows to look at: refused. A shuffler shows rows without senders, which is enough.

The result stands for the sum of the rows, as methods expect it: the location of the rows times the sum of their
weights. Numbers that are not finite count as the largest there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sordino.core import check
from sordino.core.errors import LostRound, RunError, SpecError
from sordino.core.message import Message

MERGES = {"mean": None, "median": None, "trimmed": 0.1, "krum": 1.0, "norm-bound": 1.0}  # and their usual parameter
FIELD = "update"  # the field that norm-bound scales
BLOCK = 2**22  # numbers that are sorted at once
TINY = 1e-9  # relative tolerance in sums of weights


@dataclass(frozen=True)
class RobustMerge:
    """A rule by which the rows of a round become one; see the module docstring."""

    kind: str = "mean"
    value: float = 0.0  # share, number of malicious clients or length
    picks: int = 1  # krum: number of rows whose mean is taken

    @property
    def plain(self) -> bool:
        """Return whether this is the mean, of which the noise of all clients is a part."""
        return self.kind == "mean"

    @property
    def single_row(self) -> bool:
        """Return whether one row comes out, instead of all rows within a bound."""
        return self.kind not in ("mean", "norm-bound")

    @property
    def fewest(self) -> int:
        """Return the number of rows below which the rule says nothing."""
        return int(2 * self.value + 3) if self.kind == "krum" else 1

    def __call__(self, arrived: Message) -> Message:
        """Return what the method merges: rows within a bound, or one row in the place of their sum."""
        if self.plain or not len(arrived):
            return arrived
        if arrived.summed:
            raise RunError(f"merge = {self.kind} needs the rows of single clients, but only their sum arrived.")
        if self.kind == "norm-bound":
            if FIELD not in arrived.fields:
                raise RunError(f"merge = norm-bound bounds the field {FIELD}, which the message lacks.")
            return replace(arrived, fields={**arrived.fields, FIELD: scaled_rows(arrived[FIELD], self.value)})
        return self._one_row(arrived)

    def _one_row(self, arrived: Message) -> Message:
        if len(arrived) < self.fewest:
            raise LostRound(f"merge = krum needs {self.fewest} answers")
        if odd := [name for name, value in arrived.fields.items() if not value.is_floating_point()]:
            raise RunError(f"merge = {self.kind} needs decimal numbers, but the field {odd[0]} holds whole ones.")
        parts = {name: value.flatten(1) for name, value in arrived.fields.items()}
        rows = torch.cat(list(parts.values()), dim=1)
        weight = rows.new_ones(len(rows)) if arrived.weight is None else arrived.weight.to(rows)
        if arrived.heavy and arrived.weight is not None:
            rows = rows / weight[:, None].clamp(min=torch.finfo(rows.dtype).tiny)
        merged = self.location(rows, weight) * weight.sum()
        pieces = merged.split([part.shape[1] for part in parts.values()])
        fields = {n: p.reshape(1, *arrived[n].shape[1:]) for n, p in zip(parts, pieces, strict=True)}
        return Message(fields, weight.sum()[None], None, heavy=True, summed=True)

    def location(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Return the merged row [dim] of rows [clients, dim] with weights [clients]."""
        if self.kind == "krum":
            return krum(rows, weight, int(self.value), self.picks)
        share = None if self.kind == "median" else self.value
        wide = max(1, BLOCK // len(rows))
        return torch.cat([_middle(part, weight, share) for part in rows.split(wide, dim=1)])

    def remarks(self, private: bool) -> Iterator[str]:
        """Yield what whoever runs with this merge should know."""
        if not self.plain and private:
            yield (
                f"merge = {self.kind}: clients' rows are as private as with a mean, but the public may see the noise "
                "of one client alone, so no credit is given for that of the others"
            )


def parsed(text: str) -> RobustMerge:
    """Return the merge that a key names, such as trimmed:0.2 or krum:2:5."""
    kind, *numbers = text.split(":")
    check.one_of(tuple(MERGES), merge=kind)
    usual = MERGES[kind]
    if len(numbers) > (0 if usual is None else 2 if kind == "krum" else 1):
        raise SpecError(f"merge = {text!r}: {kind} takes {'no number' if usual is None else 'fewer numbers'}.")
    try:
        value = float(numbers[0]) if numbers else usual or 0.0
        picks = int(numbers[1]) if numbers[1:] else 1
        whole = kind != "krum" or value == int(value)
    except (ValueError, OverflowError) as error:
        raise SpecError(f"merge = {text!r}: {':'.join(numbers)!r} is not a number.") from error
    if kind == "trimmed" and not 0 < value < 0.5:
        raise SpecError(f"merge = {text!r}: the share lies strictly between 0 and 0.5.")
    if kind == "krum" and not (whole and value >= 0 and picks >= 1):
        raise SpecError(f"merge = {text!r}: krum takes whole numbers: malicious clients, and rows to keep.")
    if kind == "norm-bound":
        check.positive(**{"merge norm-bound": value})
    return RobustMerge(kind, value, picks)


def scaled_rows(rows: Tensor, length: float) -> Tensor:
    """Return the rows, scaled down to an L2 length where they are longer; rows that are not finite become zero."""
    flat = rows.flatten(1).double()
    norms = flat.norm(dim=1)
    factor = torch.where(norms.isfinite(), (length / norms.clamp(min=length)), torch.zeros_like(norms))
    return (flat.nan_to_num(0.0, 0.0, 0.0) * factor[:, None]).to(rows.dtype).reshape(rows.shape)


def krum(rows: Tensor, weight: Tensor, malicious: int, picks: int = 1) -> Tensor:
    """Return the weighted mean of the `picks` rows with the smallest distances to their nearest neighbours."""
    wide = rows.double()
    apart = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart = apart.nan_to_num(float("inf"), float("inf")).fill_diagonal_(float("inf"))
    near = apart.sort(dim=1).values[:, : max(1, len(rows) - malicious - 2)]
    chosen = near.sum(dim=1).argsort(stable=True)[: min(picks, len(rows) - malicious)]
    share = weight[chosen].double()
    return ((wide[chosen] * share[:, None]).sum(dim=0) / share.sum()).to(rows.dtype)


def _middle(rows: Tensor, weight: Tensor, share: float | None) -> Tensor:
    """Return the weighted median of every column, or its weighted mean without the given share at either end."""
    value, order = rows.nan_to_num(float("inf"), float("inf"), float("-inf")).sort(dim=0)
    held = weight.double()[order]  # [clients, dim]
    upto, total = held.cumsum(dim=0), weight.double().sum()
    if share is None:
        last = len(rows) - 1
        low = (upto < total / 2 * (1 - TINY)).sum(dim=0, keepdim=True).clamp(max=last)
        high = (upto <= total / 2 * (1 + TINY)).sum(dim=0, keepdim=True).clamp(max=last)
        return (value.gather(0, low)[0] + value.gather(0, high)[0]) / 2
    kept = upto.clamp(max=(1 - share) * total) - (upto - held).clamp(min=share * total)
    kept = torch.where(kept > TINY * total, kept, torch.zeros_like(kept))
    inside = torch.where(kept > 0, value.double(), torch.zeros_like(kept))
    return ((inside * kept).sum(dim=0) / kept.sum(dim=0)).to(rows.dtype)
