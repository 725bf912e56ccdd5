"""FedSDP as printed.  Li, Gui, Wu (2025), arXiv:2503.12958, Section III, Eq. (2)-(6).

Each round a client trains three models from the one it received: on all its records, on those with private attributes,
and on the general ones. Their accuracies c, c_p, c_u on the client's held-out records give the Shapley value
gamma_p = (c - c_u + c_p) / 2 of the private attributes (Eq. 3), their share R = gamma_p / (gamma_p + gamma_u) (Eq. 4),
the tolerance T = R - alpha ln(delta) (Eq. 5) and the noise sigma = 2C sqrt(max(T, beta)) / (epsilon |D|) (Eq. 6) on the
trained weights, which are clipped to C. With several private groups (beyond the paper), the game has more players: the
general records, group 1, group 2, ...

The claim is about a record against other clients, for one round (the paper trusts the server; here the run is accounted
against the server). It is not private in our sense. R is computed without noise from private and held-out records, and
shows in the noise that is added; weights that are trained and then clipped to C move by up to 2C when one record
changes, not by 2C/|D|; and at R < 2 ln 1.25 there is less noise than in the classical formula that the proof refers to.
The sound form is fedsdp/method.py.

Where the text leaves a choice:
- C has no value in the paper, which gives only G_c = 20: `clip` and `gradient_clip` are both 20 here. As printed, C
  bounds the L2 norm; with `clip_by = coordinate` it bounds every weight (see nbafl_paper.py). alpha is 2, for which the
  theorem states (epsilon, delta); beta has no value in the paper either.
- The value of the empty set of records is implicitly 0 in Eq. (3). With `empty_value` it is the received model's
  accuracy.
- All models are validated on the same records, as the text says, not each on its own kind, as c_p = f(D_p) could mean.
- The text trains w_i on "the entire local training dataset" and validates on a "local validation set", and does not
  say where the latter comes from. With `validate_on = held-out` it is the last `held_out` share of each group of a
  client's records, and the rest is the training set. With `validate_on = server` the training set is all of a client's
  records, as for every other method, and all clients validate on the records that the server holds (key
  `server_data`), which are sent along with the weights and count as public. |D| is the number of training records in
  both.
- A client without private records has R = 0, the value of a player that contributes nothing, and adds the noise of
  Eq. (6) for this R. As honest-but-curious clients are not among those that the scheme protects, they add no noise with
  `curious_noise = false`.
- R is clamped to [0, 1]; where the values sum to zero (c = 0) it is 1/2.
- Where there are no classes, accuracy is 1 / (1 + mean loss), which is our choice."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from sordino.algorithms.base import Gradient
from sordino.contract import local_sgd as training
from sordino.contract.method import Claim, Method, Own, Plan, Release, Site
from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.rng import Floats, Stream
from sordino.core.types import Batch, Model, Rows, State
from sordino.core.vector import Layout
from sordino.methods._claims import fedsdp_std
from sordino.methods.fedsdp import shapley
from sordino.methods.fedsdp.method import known, require_groups
from sordino.methods.nbafl_paper import CLIPS, clip_weights
from sordino.methods.none import by_records
from sordino.privacy.clip import clip_rows
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Unproven

__all__ = ["FedSdpPaper"]

PLAYERS = 4  # largest number of players for which all coalitions are evaluated: 14 besides all and none
ORDERS = 8  # random orders of the players beyond that number
VALIDATION = ("held-out", "server")
SCORED = ("all", "private", "general", "received")  # models whose accuracy is reported
WHY_NOT = (
    "the noise scale depends on R, which is computed from private attributes, and one record can change the clipped "
    "weights by 2C, while the noise is calibrated to a sensitivity of 2C/|D|"
)


@dataclass(frozen=True)
class Contributions:
    """The values reported by the clients of the last round, one row per client."""

    clients: Tensor
    ratio: Tensor  # R
    std: Tensor  # standard deviation of the noise in the weights
    accuracy: Tensor  # accuracies of the models SCORED [clients, 4]
    shares: Tensor  # shares of the general records, of group 1, ... [clients, groups + 1]


@dataclass(frozen=True)
class ContributionsAndRecords(Contributions):
    """The same, with the server's records on which all clients validate."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class FedSdpPaper(Method):
    """FedSDP as printed; its claim does not hold."""

    clip: float = 20.0  # C: bound on the L2 norm of a client's weights
    clip_by: str = "norm"  # norm: C bounds the L2 norm of the weights; coordinate: every weight by itself
    gradient_clip: float = 20.0  # G_c: bound on the L2 norm of a batch's gradient
    groups: int = 1  # number of groups of private attributes in private_data
    tolerance_slope: float = 2.0  # alpha: weight of ln(1/delta) in the tolerance
    tolerance_floor: float = 0.1  # beta: smallest tolerance
    validate_on: str = "held-out"  # held-out: a share of the client's own records; server: those of server_data
    held_out: float = 0.2  # share of each group of a client's records that is held out for validation
    empty_value: bool = False  # measure contributions from the received model's accuracy instead of from 0
    permutations: int = 0  # random orders of the groups for estimating Shapley values; 0: exact up to 4 players
    curious_noise: bool = True  # whether clients without private records add noise, with R = 0

    private: ClassVar[bool] = False
    tagged: ClassVar[bool] = True
    by_records: ClassVar[bool] = True
    reads: ClassVar[str] = "rows"
    algorithms: ClassVar[tuple[str, ...]] = ("fedavg", "fedavgm", "fedopt", "fedprox")

    def __post_init__(self) -> None:
        check.positive(clip=self.clip, gradient_clip=self.gradient_clip, tolerance_slope=self.tolerance_slope)
        check.positive(tolerance_floor=self.tolerance_floor)
        check.one_of(CLIPS, clip_by=self.clip_by)
        check.one_of(VALIDATION, validate_on=self.validate_on)
        check.count(groups=self.groups)
        check.below_one(held_out=self.held_out)
        check.non_negative(permutations=self.permutations)

    def claim(self, plan: Plan) -> Claim:
        return Claim(
            epsilon=plan.epsilon,
            delta=min(1.0, plan.delta * self.tolerance_slope / 2),
            source="Li et al. (2025), Theorem 1",
            why_not="the noise scale depends on R, which is computed from private attributes, and one record can "
            "change the clipped weights by 2C, not by the assumed 2C/|D|",
            scope="round",
            viewer="client",
        )

    def check_groups(self, highest: int) -> None:
        require_groups(highest, self.groups)

    def releases(self, plan: Plan, round: int = 0, state: State | None = None) -> tuple[Release, ...]:
        return (Release("update", Unproven(WHY_NOT, Gaussian(1.0)), "record", key="release"),)

    def uses_public(self) -> bool:
        return self.validate_on == "server"

    def variables(self, state: State, layout: Layout, plan: Plan) -> Contributions:
        fields = self._nothing()
        if self.validate_on == "held-out":
            return Contributions(**fields)
        if plan.public is None:
            raise SpecError(
                "validate_on = server validates on records that the server holds: set server_data (a share of the "
                "clients' records, which then count as public), or use validate_on = held-out."
            )
        return ContributionsAndRecords(**fields, x=plan.public.batch.x, y=plan.public.batch.y)

    def _nothing(self) -> dict[str, Tensor]:
        """Return the values of a round without clients."""
        none = torch.zeros(0, dtype=torch.float64)
        players, models = none.new_zeros(0, self.groups + 1), none.new_zeros(0, len(SCORED))
        ids = torch.zeros(0, dtype=torch.int64)
        return {"clients": ids, "ratio": none, "std": none, "accuracy": models, "shares": players}

    def train(self, state: State, site: Site) -> tuple[Message, Own]:
        """Send the clipped noisy weights less the received ones, and the client's R, accuracies and shares."""
        data, plan, model, rng = site.data, site.plan, site.model, site.rng
        known(data, self.groups)
        seen, checked = self._divided(state, data)
        everyone = frozenset(range(self.groups + 1))
        scores: dict[frozenset[int], Floats] = {}

        def trained(players: frozenset[int]) -> tuple[Rows, Rows]:
            here = rng if players == everyone else rng.at("players", *sorted(players))
            gradient = self._bounded(training.exact(model, plan.now(state), here))
            return training.sgd(state, replace(site, data=_of(seen, players), rng=here), gradient)

        def value(players: frozenset[int]) -> Floats:
            if players not in scores:
                accuracy = _accuracies(state.params + trained(players)[0], checked, model)
                scores[players] = np.where(np.array(_of(seen, players).sizes) > 0, accuracy, nobody)
            return scores[players]

        rows, mine = trained(everyone)
        received = self._received(state, checked, model)
        nobody = received if self.empty_value else np.zeros_like(received)
        scores |= {frozenset(): nobody, everyone: _accuracies(state.params + rows, checked, model)}
        shares = self._shares(value, seen, rng.stream)
        ratios = np.clip(shares[1:].sum(axis=0), 0.0, 1.0)
        stds = [self._std(n, plan, r) for n, r in zip(seen.sizes, ratios.tolist(), strict=True)]
        if not self.curious_noise:
            stds = [s if private else 0.0 for s, private in zip(stds, _has_private(seen), strict=True)]
        accuracies = [value(everyone), value(everyone - {0}), value(frozenset({0})), received]
        std = torch.tensor(stds, dtype=rows.dtype, device=rows.device)
        clipped = clip_weights(state.params + rows, self.clip, self.clip_by)
        fields = {
            "update": site.out["update"](clipped, multiplier=std[:, None]) - state.params,
            "ratio": torch.from_numpy(ratios),
            "std": std.double(),
            "accuracy": torch.from_numpy(np.stack(accuracies, axis=1)),
            "shares": torch.from_numpy(np.ascontiguousarray(shares.T)),
        }
        weight = torch.tensor(data.sizes, dtype=rows.dtype, device=rows.device)
        return Message({name: v.to(rows.device) for name, v in fields.items()}, weight), site.kept(mine)

    def _divided(self, state: State, data: Batch) -> tuple[Batch, Batch]:
        """Return the training records and the records on which each client validates."""
        if self.validate_on == "held-out":
            return self._split(data)
        shared, clients = state.method, len(data.sizes)
        every = torch.arange(len(shared.y), device=shared.y.device).repeat(clients)
        x, y = (records[every].to(data.x.device) for records in (shared.x, shared.y))
        return data, Batch(x, y, (len(shared.y),) * clients)

    def _received(self, state: State, checked: Batch, model: Model) -> Floats:
        """Return the accuracy of the received model on each client's validation records [clients]."""
        if self.validate_on == "held-out":
            return _accuracies(state.params, checked, model)
        n = checked.sizes[0] if checked.sizes else 0  # the same records for all clients
        once = _accuracies(state.params, Batch(checked.x[:n], checked.y[:n], (n,)), model)
        return np.repeat(once, len(checked.sizes))

    def _split(self, data: Batch) -> tuple[Batch, Batch]:
        """Return the training records and the held-out records, the last part of each group of a client's records.

        The split depends on the position of the records alone."""
        sizes = torch.tensor(data.sizes, dtype=torch.int64, device=data.x.device)
        owner = torch.arange(len(sizes), device=data.x.device).repeat_interleave(sizes)
        key = owner * (self.groups + 1) + _tags(data)
        order = torch.argsort(key, stable=True)
        counts = torch.bincount(key, minlength=len(sizes) * (self.groups + 1))
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[key[order]]
        held = place >= counts[key] - (counts[key] * self.held_out).floor().long()
        some = torch.zeros_like(sizes).index_add_(0, owner, held.long()) > 0
        return data.where(~held), data.where(held | ~some[owner])  # too few to hold any out: validates on all

    def _bounded(self, gradient: Gradient) -> Gradient:
        return lambda weights, batch, number: clip_rows(gradient(weights, batch, number), self.gradient_clip).value

    def _shares(self, value: shapley.Value, data: Batch, rng: Stream) -> Floats:
        """Return every player's share of the Shapley values [players, clients]; 0 for a player without records."""
        players = self.groups + 1
        if self.permutations or players > PLAYERS:
            values = shapley.sampled(players, value, max(2, self.permutations or ORDERS), rng.at("orders")).values
        else:
            values = shapley.exact(players, value)
        values = values * _present(data, players)
        total = values.sum(axis=0)
        even = np.where(np.arange(players) == 0, 0.5, 0.5 / max(1, self.groups))[:, None] * (total <= 0)
        shares = np.where(total > 0, values / np.where(total > 0, total, 1.0), even)
        return np.asarray(np.where(np.array(_has_private(data)), shares, np.arange(players)[:, None] == 0))

    def _std(self, records: int, plan: Plan, ratio: float) -> float:
        alpha, beta = self.tolerance_slope, self.tolerance_floor
        return fedsdp_std(self.clip, max(1, records), plan.epsilon, plan.delta, ratio, alpha, beta)

    def merge(self, state: State, seen: Message, plan: Plan) -> State:
        """Average the updates, weighted by the records of the clients that took part."""
        after = by_records(state, seen, plan, noisy=True)
        if after is state or seen.ids is None:  # no client answered
            return replace(state, method=replace(state.method, **self._nothing()))
        clients = torch.from_numpy(seen.ids).to(torch.int64)
        remarks = {name: seen[name].double().cpu() for name in ("ratio", "std", "accuracy", "shares")}
        return replace(after, method=replace(state.method, clients=clients, **remarks))

    def decided(self, state: State, plan: Plan) -> dict[str, Any] | None:
        now = state.method
        if not len(now.clients):
            return None
        each = zip(now.clients.tolist(), now.ratio.tolist(), now.std.tolist(), now.shares.tolist(), strict=True)
        return {
            "ratio": float(now.ratio.mean()),
            "ratio_min": float(now.ratio.min()),
            "ratio_max": float(now.ratio.max()),
            "std": float(now.std.mean()),  # follows each client's R, and so is known only after the round
            "accuracy": dict(zip(SCORED, now.accuracy.mean(dim=0).tolist(), strict=True)),
            "shares": now.shares.mean(dim=0).tolist(),  # general records, group 1, ...
            "clients": {str(client): {"ratio": r, "std": s, "shares": shares} for client, r, s, shares in each},
        }

    def explain(self, rounds: list[dict[str, Any]]) -> list[str]:
        return [_sentence(r["round"], r["decided"]) for r in rounds if r.get("decided")]


def _tags(data: Batch) -> Tensor:
    return data.y.new_zeros(len(data.y), dtype=torch.int64) if data.tags is None else data.tags


def _of(data: Batch, players: frozenset[int]) -> Batch:
    """Return the records of these groups."""
    tags = _tags(data)
    return data.where(torch.isin(tags, torch.tensor(sorted(players), dtype=tags.dtype, device=tags.device)))


def _present(data: Batch, players: int) -> Floats:
    """Return 1 for each group of which a client has any record, else 0 [players, clients]."""
    present = [[float(n > 0) for n in _of(data, frozenset({g})).sizes] for g in range(players)]
    return np.array(present, dtype=np.float64).reshape(players, len(data.sizes))


def _has_private(data: Batch) -> list[bool]:
    return [n > 0 for n in data.where(_tags(data) > 0).sizes]


def _accuracies(weights: Tensor, data: Batch, model: Model) -> Floats:
    """Return the accuracy of each client's weights ([dim] or [clients, dim]) on its records [clients]."""
    module, out, start = copy.deepcopy(model.module).eval(), [], 0
    with torch.no_grad():
        for row, size in zip(weights.expand(len(data.sizes), -1), data.sizes, strict=True):
            x, y = data.x[start : start + size], data.y[start : start + size]
            start += size
            predicted = functional_call(module, model.layout.views(row), (x,))
            if y.is_floating_point():
                score = 1 / (1 + model.loss(predicted, y).mean())
            else:
                score = (predicted.argmax(dim=-1) == y).float().mean()
            out.append(float(torch.nan_to_num(score, nan=0.0)))
    return np.array(out, dtype=np.float64)


def _sentence(number: int, chosen: dict[str, Any]) -> str:
    every = chosen["clients"]
    text = (
        f"Round {number}: private records made {100 * chosen['ratio']:.0f} % of what training gained, on average over "
        f"the clients ({_groups(chosen['shares'])})."
    )
    if not every:
        return text + " The client asked for was not in it."
    shown = sorted(every, key=lambda c: every[c]["ratio"])
    for place, client in (("Most", shown[-1]), ("Least", shown[0])) if len(shown) > 1 else (("", shown[0]),):
        figures = every[client]
        start = f" {place} at client {client}:" if place else f" Client {client}:"
        share = f"{round(100 * figures['ratio'])} % ({_groups(figures['shares'])})"
        text += f"{start} {share}, so noise of deviation {figures['std']:.3g}."
    if any(not 0 <= s <= 1 for figures in every.values() for s in figures["shares"]):
        text += " (A share below 0: with those records training gained less; the others then make more than 100 %.)"
    return text


def _groups(shares: list[float]) -> str:
    private = ", ".join(f"group {g} {round(100 * s)} %" for g, s in enumerate(shares[1:], start=1))
    return f"{private}; general records {round(100 * shares[0])} %"
