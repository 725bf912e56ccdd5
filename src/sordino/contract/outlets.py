"""Outlets, the only way for values to leave the clients: they clip, apply the declared mechanism, count and meter.

`site.out["gradient"](x)` returns the noisy value. An outlet refuses more uses than declared, a larger bound or less
noise than declared and, if a `total` covers the run, any use that would exceed the total for any client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.core.rng import Ints, RowStream, Stream
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from sordino.privacy.release import Release, Unproven, Use

ROUNDED = 2.0**-22  # relative loss of a noise multiplier by rounding to 32 bits, at most
SLACK = 1e-9  # relative excess over a bound or a budget that rounding may cause
NUMBERED = re.compile(r"(.*) (#|\d+)$")


class Witness(Protocol):
    """Observer of the inputs and outputs of outlets, which may also supply the outputs (used in rehearsals)."""

    def known(self, release: Release, ids: Ints) -> Tensor | None:
        """Return the output to give these clients instead of applying the mechanism; None to apply it."""

    def passed(self, release: Release, x: Bounded, ids: Ints, output: Tensor, multiplier: Tensor | None) -> None:
        """Record one use of an outlet."""


@dataclass(frozen=True)
class Outlets(Mapping[str, "Outlet"]):
    """The outlets of a group of clients in one phase of a round."""

    releases: tuple[Release, ...]
    rng: RowStream  # streams of the clients in this round
    round: int = 0
    split: int = 1  # number of clients that share the noise
    own: Tensor | None = None  # [clients, 1]: noise multipliers of clients with personal budgets
    base: float = 1.0  # noise multiplier of the run
    spent: Tensor | None = None  # [clients]: fraction of the total spent so far
    witness: Witness | None = None
    at: Ints | None = None  # indices of these clients in the counters below; None: all clients
    used: dict[str, Ints] = field(default_factory=dict)  # by outlet: number of uses by each client
    drawn: dict[str, Ints] = field(default_factory=dict)  # by stream path: next number at each client
    outputs: dict[str, tuple[Tensor, int]] = field(default_factory=dict)  # by outlet: last output and its version
    uneven: set[str] = field(default_factory=set)  # outlets at which clients had their own multipliers
    apart: dict[str, Tensor] = field(default_factory=dict)  # by part of the data: fraction spent this round

    def __getitem__(self, name: str) -> Outlet:
        for release in self.releases:
            if release.name == name:
                return Outlet(release, self)
        raise RunError(
            f"there is no outlet {name!r}: releases declares {', '.join(r.name for r in self.releases) or 'none'}."
        )

    def __iter__(self) -> Iterator[str]:
        return iter(r.name for r in self.releases)

    def __len__(self) -> int:
        return len(self.releases)

    @property
    def places(self) -> Ints:
        """Return the indices of these clients in the shared counters."""
        return np.arange(len(self.rng.ids)) if self.at is None else self.at

    def only(self, at: Ints) -> Outlets:
        """Return the outlets of the clients at these indices; uses are still counted together."""
        rng = RowStream(self.rng.stream, self.rng.ids[at])
        return replace(
            self,
            rng=rng,
            at=self.places[at],
            own=None if self.own is None else self.own[torch.from_numpy(at).to(self.own.device)],
        )

    def check(self, message: Message) -> None:
        """Raise an error before a message leaves if an outlet was never used or rows exceed a server's bound."""
        for release in self.releases:
            if release.onto or isinstance(release.mechanism, Unproven):
                continue
            if not release.part and len(self.rng.ids) and not self.used.get(release.name, np.zeros(1)).any():
                raise RunError(
                    f"the release {release.name} was declared and its outlet was never used: send what "
                    f'site.out["{release.name}"] returns.'
                )
            if release.where == "server":
                self._within(release, message)
            if release.additive:
                self._as_it_stands(release, message)

    def released(self, message: Message) -> frozenset[str]:
        """Return the fields that are unmodified outputs of an outlet whose mechanism was the same for all clients.

        Anything else in a row could identify its client, even if it is public: a size, an index, a remark.
        """
        alike = [name for name in self.outputs if name not in self.uneven]
        return frozenset(k for k, value in message.fields.items() if any(self._gave(name, value) for name in alike))

    def _gave(self, name: str, value: Tensor) -> bool:
        """Return whether a value is the last output of an outlet and has not been written to since."""
        output, version = self.outputs.get(name, (None, 0))
        return value is output and _version(value) == version

    def _as_it_stands(self, release: Release, message: Message) -> None:
        """Check that a field that is read only as a sum is the unmodified output of its outlet.

        The output may consist of integers in another unit.
        """
        if not self._gave(release.name, message.fields.get(release.name, torch.empty(0))) or message.weight is not None:
            raise RunError(
                f"the release {release.name} is declared as additive: send what its outlet returned as the field "
                f"{release.name}, unchanged and without weights."
            )

    def _within(self, release: Release, message: Message) -> None:
        """Check that the rows, as they are sent, are covered by the noise that the server will add."""
        if release.name not in message.fields:
            raise RunError(f"the server adds noise to the field {release.name}, which the message lacks.")
        if message.weight is not None and len(message) and not float(message.weight.abs().max()) <= 1 + SLACK:
            raise RunError(f"rows of {release.name} have weights above 1, but the server's noise is for their bound.")
        value = message[release.name]
        if not release.rows or not len(value):
            return
        longest = float(value.double().flatten(1).norm(p=release.norm, dim=1).max())
        if release.bound is None or not longest <= release.bound * (1 + 1e-6):  # also if it is NaN
            raise RunError(
                f"rows of {release.name} have norm {longest:.4g}, but the server's noise is for {release.bound:.4g}: "
                f'send what site.out["{release.name}"] returns.'
            )


@dataclass(frozen=True)
class Outlet:
    """The outlet of one release for a group of clients."""

    release: Release
    outlets: Outlets

    def __call__(self, x: Tensor | Bounded, multiplier: Tensor | None = None) -> Tensor:
        """Return the value [clients, ...] with the declared noise.

        Args:
            x: One row per client. A plain tensor is clipped row by row first.
            multiplier: Each client's own noise multiplier [clients, 1], never below the declared one. If it is
                infinite, the row becomes zero.
        """
        release, all_of_them = self.release, self.outlets
        value = x.value if isinstance(x, Bounded) else x
        if value.ndim > 2 and not isinstance(release.mechanism, Unproven):
            raise RunError(
                f"the outlet {release.name} takes rows [clients, numbers], but was given {list(value.shape)}: flatten "
                "what belongs to one client."
            )
        bounded = self._bounded(x)
        if len(bounded.value) != len(all_of_them.rng.ids):
            raise RunError(
                f"the outlet {release.name} takes one row per client, {len(all_of_them.rng.ids)}, but was given "
                f"{len(bounded.value)}."
            )
        number = self._count()
        if multiplier is None and all_of_them.own is not None and not isinstance(release.mechanism, Unproven):
            if release.multiplier is None:
                raise RunError(
                    f"clients have budgets of their own, but the mechanism of {release.name} has no noise multiplier "
                    "that could follow them."
                )
            multiplier = release.multiplier / all_of_them.base * all_of_them.own
        if multiplier is not None:
            self._enough(multiplier)
            all_of_them.uneven.add(release.name)
        if release.total is not None and release.where == "client":
            self._meter(multiplier)
        witness = all_of_them.witness
        known = None if witness is None else witness.known(release, all_of_them.rng.ids)
        if known is not None:
            output = known
        elif release.where == "server":
            output = bounded.value
        else:
            use = Use(all_of_them.round, all_of_them.split, multiplier)
            output = release.mechanism.apply(bounded, along(all_of_them.rng, path_of(release), number), use)
            if multiplier is not None and bool(torch.isinf(multiplier).any()):
                silent = torch.isinf(multiplier).reshape(*multiplier.shape, *(1,) * (output.ndim - multiplier.ndim))
                output = torch.where(silent, torch.zeros((), dtype=output.dtype, device=output.device), output)
        if witness is not None:
            witness.passed(release, bounded, all_of_them.rng.ids, output, multiplier)
        all_of_them.outputs[release.name] = output, _version(output)
        return output

    def _bounded(self, x: Tensor | Bounded) -> Bounded:
        release = self.release
        if isinstance(release.mechanism, Unproven):
            return x if isinstance(x, Bounded) else Bounded(x, release.bound or 1.0, release.norm)
        bound = release.bound or 0.0
        if not isinstance(x, Bounded):
            if release.where == "client" and release.unit != "client":
                raise RunError(
                    f"the release {release.name} is of {release.unit}s: a row clipped as a whole does not bound "
                    f"what one {release.unit} adds to it. Clip each one's part and give the outlet Bounded(sum, clip)."
                )
            return clip_rows(x, bound, release.norm)
        if x.norm != release.norm and x.value.shape[-1] > 1:
            raise RunError(
                f"the outlet {release.name} takes values bounded in the L{release.norm:g} norm, not in L{x.norm:g}."
            )
        if x.bound > bound * (1 + SLACK):
            raise RunError(
                f"the release {release.name} declares the bound {bound:.6g}; its outlet was given {x.bound:.6g}."
            )
        return replace(x, bound=bound)

    def _count(self) -> int:
        """Count a use by these clients and return its number, which is new in the stream of every client."""
        release, outlets, at = self.release, self.outlets, self.outlets.places
        used, drawn = _counts(outlets.used, release.name, at), _counts(outlets.drawn, path_of(release), at)
        if len(at) and int(used[at].max()) >= release.times:
            often = "once" if release.times == 1 else f"{release.times} times"
            raise RunError(
                f"the release {release.name} was declared {often} a round and its outlet was used once more: declare "
                "`times`."
            )
        number = int(drawn[at].max()) if len(at) else 0
        used[at] += 1
        drawn[at] = number + 1  # clients with fewer uses skip numbers
        return number

    def _enough(self, multiplier: Tensor) -> None:
        declared = self.release.multiplier
        if isinstance(self.release.mechanism, Unproven) or not len(multiplier):
            return
        if declared is None:
            raise RunError(
                f"the release {self.release.name} has no noise multiplier to compare a client's own with: declare a "
                "mechanism that has one, or let all clients use the declared noise."
            )
        personal, base = self.outlets.own, self.outlets.base
        paid = declared if personal is None else (declared / base * personal.double().cpu()).clamp_min(declared)
        share = multiplier.double().cpu().flatten(1).amin(dim=1, keepdim=True) / paid
        if not float(share.min()) >= 1 - ROUNDED:  # also if it is NaN
            raise RunError(
                f"the release {self.release.name} declares a noise multiplier of {declared:.6g}; its outlet was asked "
                f"for {float(share.min()):.6g} times a client's, which is less noise than was paid for."
            )

    def _meter(self, multiplier: Tensor | None) -> None:
        """Add this use to what each client has spent of the total, measured in squared noise levels."""
        release, outlets = self.release, self.outlets
        total, declared = getattr(release.total, "noise_multiplier", None), release.multiplier
        if outlets.spent is None:
            return
        if total is None or declared is None:
            raise RunError(f"the release {release.name} has a total, but no noise multiplier to meter its uses by.")
        each = torch.full((len(outlets.places), 1), declared, dtype=torch.float64)
        if multiplier is not None:
            each = multiplier.double().cpu().flatten(1).amin(dim=1, keepdim=True)
        factor = 1.0 if outlets.own is None else outlets.own.double().cpu() / outlets.base
        at = torch.from_numpy(outlets.places)
        used = ((total * factor / each) ** 2)[:, 0]
        if release.part:  # a record lies in one part only: the most expensive part counts
            spent = outlets.apart.setdefault(release.part, torch.zeros_like(outlets.spent))
            before = torch.stack([*outlets.apart.values()]).amax(dim=0)[at]
            spent[at] += used
            used = torch.stack([*outlets.apart.values()]).amax(dim=0)[at] - before
        outlets.spent[at] += used
        worst = float(outlets.spent[at].max()) if len(at) else 0.0
        if worst > 1 + SLACK:
            raise RunError(
                f"the release {release.name} would take a client to {worst:.6g} times the total that the run pays for."
            )


def _counts(counts: dict[str, Ints], name: str, at: Ints) -> Ints:
    """Return the counters of an outlet, extended to cover the clients at these indices."""
    held, most = counts.get(name, np.zeros(0, dtype=np.int64)), int(at.max()) + 1 if len(at) else 0
    if len(held) < most or name not in counts:
        held = counts[name] = np.concatenate([held, np.zeros(max(0, most - len(held)), dtype=np.int64)])
    return held


def _version(value: Tensor) -> int:
    """Return how often a tensor was written to in place; inference tensors are not counted by torch."""
    return 0 if value.is_inference() else value._version


def along(rng: RowStream, path: str, number: int) -> RowStream:
    """Return the stream at a path such as "train/noise #", where # stands for the number of the use.

    A path without # gets a separate stream for every use after the first, so that no noise is drawn twice.
    """
    for step in path.split("/"):
        rng = rng.at(*_step(step, number))
    return rng if "#" in path or not number else rng.at("use", number)


def path_of(release: Release) -> str:
    """Return the path of a release's noise; the default path is not available to methods for other draws."""
    return release.key or f"outlet/{release.name}"


def stream_along(rng: Stream, path: str, number: int = 0) -> Stream:
    """Return the stream of a single party at a path."""
    for step in path.split("/"):
        rng = rng.at(*_step(step, number))
    return rng


def _step(step: str, number: int) -> tuple[str | int, ...]:
    match = NUMBERED.fullmatch(step)
    if match is None:
        return (step,)
    return match[1], number if match[2] == "#" else int(match[2])


def received(
    arrived: Message,
    releases: Sequence[Release],
    round: int,
    rng: Stream,
    run: Stream,
    late: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Message:
    """Return what the server may use: the sum of what arrived, with the noise that a trusted server adds.

    Lattice integers are summed as integers, then converted to floats of the model's type. The bound of the server's
    noise comes from the release, not from the rows, so that an empty cohort gets noise as well. Rows that arrive a
    round late were clipped to an older bound; those that exceed the current bound are clipped again.

    Args:
        arrived: What the channel delivered.
        releases: The releases of this phase.
        round: Number of the round.
        rng: Stream of the round, for the server's noise.
        run: Stream of the run, for noise correlated over the rounds.
        late: Whether the message may contain rows from the previous round.
        dtype: Floating-point type of the model.
    """
    arrived = _off_the_lattice(arrived, releases, dtype)
    at_server = [r for r in releases if r.where == "server"]
    if not at_server:
        return arrived
    if late:
        arrived = _clipped_again(arrived, at_server)
    total = arrived.total(wide=any(getattr(r.mechanism, "exact", False) for r in at_server))
    fields = dict(total.fields)
    for release in at_server:
        name = release.onto or release.name
        source = run if getattr(release.mechanism, "correlated", False) else rng
        stream = stream_along(source, path_of(release)).rows([0])
        fields[name] = release.mechanism.apply(Bounded(fields[name], release.bound or 0.0), stream, Use(round))
    for name, value in fields.items():
        if value.is_floating_point():
            fields[name] = value.to(arrived[name].dtype)
    return replace(total, fields=fields)


def _off_the_lattice(arrived: Message, releases: Sequence[Release], dtype: torch.dtype) -> Message:
    """Return the message with fields of lattice points added up as integers and converted to floats."""
    noises = {r: r.mechanism for r in releases if isinstance(r.mechanism, RoundedGaussian) and r.mechanism.summed}
    if not noises:
        return arrived
    total = arrived.total()
    floats = {r.name: noise.floats(total[r.name], r.bound or 0.0, dtype) for r, noise in noises.items()}
    return replace(total, fields={**total.fields, **floats})


def _clipped_again(arrived: Message, releases: Sequence[Release]) -> Message:
    fields = dict(arrived.fields)
    for release in releases:
        if release.onto or release.bound is None:
            continue
        rows = fields[release.name]
        weight = 1.0 if arrived.weight is None or arrived.heavy else arrived.weight[:, None].double()
        if len(rows) and float((rows.double() * weight).norm(p=release.norm, dim=1).max()) > release.bound:
            fields[release.name] = clip_rows(rows, release.bound, release.norm).value
    return replace(arrived, fields=fields)
