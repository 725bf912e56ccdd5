"""Methods that promise more than they keep, one fault each; and what a rehearsal says to them.

`Sound` protects clients and `Steps` records; both are right, and every fault is a few lines of difference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from sordino.contract import local_sgd
from sordino.contract.method import Method, Release
from sordino.core.message import Message
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Draw

CLIP = 0.5


@dataclass(frozen=True)
class Sound(Method):
    """Clips a client's update and adds noise at the client."""

    units: ClassVar[tuple[str, ...]] = ("client",)

    def releases(self, plan, round=0, state=None):
        return (Release("update", Gaussian(plan.z), "client", CLIP),)

    def train(self, state, site):
        update, mine = local_sgd.sgd(state, site)
        return self.sent(update, state, site), site.kept(mine)

    def sent(self, update, state, site):
        return Message({"update": site.out["update"](update)})


@dataclass(frozen=True)
class Steps(Method):
    """Clips records' gradients and adds noise to their sum at every local step."""

    units: ClassVar[tuple[str, ...]] = ("record",)

    def releases(self, plan, round=0, state=None):
        return (Release("gradient", Gaussian(plan.z), "record", CLIP, times=self.times(plan)),)

    def times(self, plan):
        return plan.local.count(plan.smallest_client)

    def train(self, state, site):
        weights = state.params.expand(len(site.data.sizes), -1)
        for _ in range(site.plan.local.count(site.plan.smallest_client)):
            weights = weights - 0.1 * self.step(weights, site)
        return Message({"update": weights - state.params}), site.kept(site.mine)

    def step(self, weights, site):
        return site.out["gradient"](Bounded(self.sums(weights, site), CLIP))

    def sums(self, weights, site, clip=CLIP):
        return site.model.gradients.sums(weights, site.data, clip)


# --- a value leaves past the outlet


class ForgottenNoise(Sound):
    def sent(self, update, state, site):
        return Message({"update": update})


class RawInstead(Sound):
    def sent(self, update, state, site):
        site.out["update"](update)
        return Message({"update": update})


class OwnNoise(Sound):
    def sent(self, update, state, site):
        site.out["update"](update)
        noise = site.rng.at("mine").normal(update.shape[1], like=update)
        return Message({"update": clip_rows(update, CLIP).value + site.plan.z * CLIP * noise})


class UnseededNoise(Sound):
    def sent(self, update, state, site):
        site.out["update"](update)
        return Message({"update": clip_rows(update, CLIP).value + site.plan.z * CLIP * torch.randn(update.shape)})


class NormBeside(Sound):
    def sent(self, update, state, site):
        return Message({"update": site.out["update"](update), "norm": update.norm(dim=1, keepdim=True)})


class CountsBeside(Sound):
    """Sends how many records have each label: whole numbers, exactly."""

    def sent(self, update, state, site):
        counts = [torch.bincount(y, minlength=3) for y in site.data.y.split(list(site.data.sizes))]
        return Message({"update": site.out["update"](update), "counts": torch.stack(counts)})


class BitBeside(Sound):
    def sent(self, update, state, site):
        first = torch.stack([x[0, :1] > 0 for x in site.data.x.split(list(site.data.sizes))])
        return Message({"update": site.out["update"](update), "bit": first})


class FieldByRecords(Sound):
    def sent(self, update, state, site):
        more = {"large": update.new_zeros(len(update), 0)} if float(site.data.x.sum()) > 0 else {}
        return Message({"update": site.out["update"](update)} | more)


class WeightsByLoss(Sound):
    def sent(self, update, state, site):
        losses = local_sgd.mean_losses(state, site.data, site.model)[:, 0]
        return Message({"update": site.out["update"](update)}, losses / losses.sum())


class TrustedWithMore(Sound):
    """The server adds noise to the updates, and gets the losses as they are."""

    viewer: ClassVar[str] = "public"

    def releases(self, plan, round=0, state=None):
        return (Release("update", Gaussian(plan.z), "client", CLIP, where="server"),)

    def sent(self, update, state, site):
        losses = local_sgd.mean_losses(state, site.data, site.model)
        return Message({"update": site.out["update"](update), "loss": losses})


class ScaledUp(TrustedWithMore):
    def sent(self, update, state, site):
        return Message({"update": 3 * site.out["update"](100 * update)})


class KeptForLater(Sound):
    """Keeps the update as it is, and sends it with that of the next round."""

    def keeps(self, state, clients, plan):
        return {"last": torch.zeros(clients, len(state.params))}

    def train(self, state, site):
        update, mine = local_sgd.sgd(state, site)
        sent = site.out["update"](update) + site.own["last"]
        return Message({"update": sent}), site.kept(mine, last=update)


class RawSecondPhase(Sound):
    phases: ClassVar[tuple[str, ...]] = ("train", "look")

    def train(self, state, site):
        update, mine = local_sgd.sgd(state, site)
        if site.phase == "look":
            return Message({"loss": local_sgd.mean_losses(state, site.data, site.model)}), site.kept(mine)
        return self.sent(update, state, site), site.kept(mine)

    def merge(self, state, seen, plan):
        return state


# --- outlets used otherwise than declared


class AppliedTwice(Sound):
    def sent(self, update, state, site):
        return Message({"update": site.out["update"](site.out["update"](update))})


class DeclaredOnce(Steps):
    def times(self, plan):
        return 1


class UsesByRecords(Steps):
    """Stops when the loss is small: how many uses there are is never released."""

    def train(self, state, site):
        update = torch.zeros(len(site.data.sizes), len(state.params))
        large = (
            local_sgd.mean_losses(state, site.data, site.model)
            > local_sgd.mean_losses(state, site.data, site.model).mean()
        )
        weights = state.params.expand(len(site.data.sizes), -1)
        for k in range(len(site.data.sizes)):
            one = site.only(torch.tensor([k]).numpy())
            for _ in range(2 if bool(large[k]) else 1):
                update[k] += self.step(weights[k : k + 1], one)[0]
        return Message({"update": update}), site.kept(site.mine)


class NoiseByRecords(Steps):
    def step(self, weights, site):
        sums = self.sums(weights, site)
        return site.out["gradient"](Bounded(sums, CLIP), site.plan.z * (1 + sums.norm(dim=1, keepdim=True)))


class NoBound(Sound):
    def releases(self, plan, round=0, state=None):
        return (Release("update", Gaussian(plan.z), "client"),)


# --- more goes in than declared


class FalseBound(Sound):
    def sent(self, update, state, site):
        return Message({"update": site.out["update"](Bounded(update, CLIP))})


class FalseRecordBound(Steps):
    def sums(self, weights, site, clip=CLIP):
        return super().sums(weights, site, 4 * CLIP)


class OneSided(Steps):
    """Replacing a record moves these sums by two bounds, which is right; removing one does too, which is not."""

    def sums(self, weights, site, clip=CLIP):
        share = site.data.y.new_tensor(site.data.sizes)[:, None] * 2 * CLIP
        return torch.cat([share.to(weights.dtype), weights.new_zeros(len(share), weights.shape[1] - 1)], dim=1)


class MeanOfOwn(Steps):
    """A mean of so many records moves by less, but not by so little when one of them is gone."""

    def releases(self, plan, round=0, state=None):
        bound = 1.0 / plan.smallest_client
        return (Release("gradient", Gaussian(plan.z), "record", bound, times=self.times(plan)),)

    def step(self, weights, site):
        sizes = weights.new_tensor(site.data.sizes)[:, None]
        return site.out["gradient"](Bounded(self.sums(weights, site, 1.0) / sizes, 1.0 / site.plan.smallest_client))


class RawStepsBetween(Steps):
    """Takes a step along the exact gradient before the noisy one, so that all records' gradients follow one record."""

    def step(self, weights, site):
        return super().step(weights - 5 * self.sums(weights, site, None), site)


class Remembers(Steps):
    """Adds what was left of the last round's sum to that of this one."""

    def keeps(self, state, clients, plan):
        return {"left": torch.zeros(clients, len(state.params))}

    def train(self, state, site):
        weights = state.params.expand(len(site.data.sizes), -1)
        sums = self.sums(weights, site) + site.own["left"]
        noisy = site.out["gradient"](Bounded(sums, CLIP))
        return Message({"update": noisy}), site.kept(site.mine, left=2 * sums)

    def times(self, plan):
        return 1


class Centred(Sound):
    def sent(self, update, state, site):
        return Message({"update": site.out["update"](update - update.mean(dim=0, keepdim=True))})


class Overlapping(Steps):
    """Declares two disjoint parts of the data and sums all records in both."""

    def releases(self, plan, round=0, state=None):
        noise, times = Gaussian(plan.z), self.times(plan)
        return tuple(Release(p, noise, "record", CLIP, times=times, part=p) for p in ("odd", "even"))

    def step(self, weights, site):
        both = [site.out[part](Bounded(self.sums(weights, site), CLIP)) for part in ("odd", "even")]
        return both[0] + both[1]


class SaysLinear(Sound):
    """Is priced as if noise added up in a sum of signs."""

    def linear(self, plan):
        return True

    def sent(self, update, state, site):
        return Message({"update": site.out["update"](update).sign()})


class OwnFactors(SaysLinear):
    """Makes every client's noise as long as it likes."""

    def sent(self, update, state, site):
        noisy = site.out["update"](update)
        return Message({"update": noisy / noisy.norm(dim=1, keepdim=True)})


class WrongDraw(Steps):
    """Claims amplification by a draw of half of the records and uses all of them: the rehearsal cannot see that."""

    def releases(self, plan, round=0, state=None):
        return (Release("gradient", Gaussian(plan.z), "record", CLIP, times=self.times(plan), draw=Draw(0.5)),)


@dataclass(frozen=True)
class Known:
    """What a server knows beside the model."""

    norms: torch.Tensor
    level: float = 1.0


@dataclass(frozen=True)
class Trusted(Sound):
    """The server is trusted with clipped updates and adds the noise; a field made of them goes along without any."""

    viewer: ClassVar[str] = "public"

    def releases(self, plan, round=0, state=None):
        return (Release("update", Gaussian(plan.z), "client", CLIP, where="server"),)

    def sent(self, update, state, site):
        clipped = site.out["update"](update)
        return Message({"update": clipped, "norm": clipped.norm(dim=1, keepdim=True)})


@dataclass(frozen=True)
class Louder(Trusted):
    """What the server adds noise to is made longer behind the outlet, where torch does not count it."""

    def sent(self, update, state, site):
        clipped = site.out["update"](update)
        clipped.data *= 100.0
        return Message({"update": clipped})


@dataclass(frozen=True)
class Notes(Sound):
    """A list on the class carries norms from the clients to the server."""

    norms: ClassVar[list[float]] = []

    def sent(self, update, state, site):
        self.norms.append(float(update.norm()))
        return super().sent(update, state, site)

    def merge(self, state, seen, plan):
        after = super().merge(state, seen, plan)
        return replace(after, params=state.params + self.norms[-1] * (after.params - state.params))


@dataclass(frozen=True)
class Written(Sound):
    """Clients write into the public state."""

    def variables(self, state, layout, plan):
        return Known(torch.zeros(plan.rounds))

    def sent(self, update, state, site):
        state.method.norms[state.round] = update.norm()
        return super().sent(update, state, site)


@dataclass(frozen=True)
class Quieter(Sound):
    """Noise follows the state, and no total covers the run."""

    def variables(self, state, layout, plan):
        return Known(torch.zeros(1))

    def releases(self, plan, round=0, state=None):
        level = 1.0 if state is None else state.method.level
        return (Release("update", Gaussian(plan.z * level), "client", CLIP),)

    def merge(self, state, seen, plan):
        return replace(super().merge(state, seen, plan), method=Known(torch.zeros(1), 0.5))


REFUSED = [
    (ForgottenNoise, "the release update was declared and its outlet was never used"),
    (RawInstead, "the field update depends on the clients' records past the outlets"),
    (OwnNoise, "the field update depends on the clients' records past the outlets"),
    (UnseededNoise, "the field update depends on the clients' records past the outlets"),
    (NormBeside, "the field norm depends on the clients' records past the outlets"),
    (CountsBeside, "the field counts depends on the clients' records past the outlets"),
    (BitBeside, "the field bit depends on the clients' records past the outlets"),
    (FieldByRecords, "which fields a message has depends on the clients' records"),
    (WeightsByLoss, "the weights of a message depend on the clients' records"),
    (TrustedWithMore, "the field loss depends on the clients' records past the outlets"),
    (ScaledUp, "rows of update have norm 1.5, but the server's noise is for 0.5"),
    (KeptForLater, "in a later round, the field update depends on the clients' records past the outlets: through what"),
    (RawSecondPhase, "the field loss depends on the clients' records past the outlets"),
    (AppliedTwice, "the release update was declared once a round and its outlet was used once more"),
    (DeclaredOnce, "the release gradient was declared once a round and its outlet was used once more"),
    (UsesByRecords, "how often the outlet gradient is used depends on the clients' records"),
    (NoiseByRecords, "the noise multiplier of the outlet gradient depends on the clients' records"),
    (FalseBound, "goes into the outlet update, which declares the bound 0.5"),
    (FalseRecordBound, "replacing one record moves what goes into the outlet gradient by"),
    (OneSided, "removing one record moves what goes into the outlet gradient by 1; declared was 1 x the bound 0.5"),
    (MeanOfOwn, "removing one record moves what goes into the outlet gradient by"),
    (RawStepsBetween, "moves what goes into the outlet gradient by"),
    (Remembers, "replacing one record moves what goes into the outlet gradient by"),
    (Centred, "row in the outlet update depends on the records of another client"),
    (SaysLinear, "the field update is not what one use of an outlet gave, times one factor for all clients"),
    (OwnFactors, "`linear` says that noise adds up in a sum of messages, but the field update is not"),
    (Overlapping, "one unit moves the outlets odd and even, whose parts of the data were declared to be disjoint"),
    (Trusted, "the field norm is made of what the server is trusted with, but no noise is declared for it"),
    (Louder, "rows of update have norm"),
    (Notes, "`merge` (or `between`) gives another state"),
    (Written, "train writes into the state, which is public"),
    (Quieter, "what a round costs depends on the state, which only a `total` for the run allows"),
]
