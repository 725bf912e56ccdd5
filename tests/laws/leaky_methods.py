"""Methods that leak more than their releases say, in ways that only an audit sees; one fault each.

Rehearsals and outlets refuse many of them (see `bad_methods.py`), so each goes past them on purpose: the outlet is used
as declared, and something else is sent; or the mechanism itself is not what its event says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from sordino.contract import clipped_steps
from sordino.core.message import Message
from sordino.core.rng import RowStream, Stream, flat
from sordino.methods.dp_fedavg import DpFedAvg
from sordino.methods.dp_sgd import DpSgd, Recipe, Whole
from sordino.privacy.clip import Bounded, clip_rows
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.release import Use


@dataclass(frozen=True)
class LessNoise(Gaussian):
    """Is priced as it says, and adds a part of that."""

    part: float = 0.5

    def apply(self, x, rng, use):
        return Gaussian(self.part * self.noise_multiplier).apply(x, rng, use)


@dataclass(frozen=True)
class LessAtClients(DpSgd):
    def recipe(self):
        return Recipe(Whole(self.clip), LessNoise)


@dataclass(frozen=True)
class LessAtServer(DpFedAvg):
    part: float = 0.5

    def releases(self, plan, round=0, state=None):
        noise = LessNoise(plan.z, self.part)
        return tuple(replace(r, mechanism=noise) for r in super().releases(plan, round, state))


@dataclass(frozen=True)
class ClippedBatch:
    """Clips the gradient of a batch as a whole, as if it were that of one record."""

    clip: float

    def bound(self, layers, factor):
        return self.clip * factor

    def sums(self, weights, batch, model, factor, seeds, groups):
        return clip_rows(model.gradients.sums(weights, batch, None, seeds=seeds, groups=groups), self.clip * factor)


@dataclass(frozen=True)
class BatchClip(DpSgd):
    def recipe(self):
        return Recipe(ClippedBatch(self.clip))


@dataclass(frozen=True)
class OneStep(DpSgd):
    """One noisy step a round, written out; right as it stands."""

    def train(self, state, site):
        batch = self.batch(state, site)
        weights = state.params.expand(len(site.data.sizes), -1)
        sums = Bounded(site.model.gradients.sums(weights, batch, self.clip), self.clip)
        expected = torch.tensor([site.plan.local.expected_batch(n) for n in site.data.sizes])[:, None]
        step = site.plan.now(state).learning_rate / expected
        rows = -step * self.noisy(sums, site.out["gradient"](sums), site)
        return Message({"update": rows}, clipped_steps.weights(site, rows)), site.kept(site.mine)

    def batch(self, state, site):
        return clipped_steps.batch_of(site.data, site.plan, "poisson", site.rng.at("batch", 0))

    def noisy(self, sums, released, site):
        return released


@dataclass(frozen=True)
class ScalarWithoutNoise(OneStep):
    """Adds noise to every parameter by its shape, and forgets the one that has none."""

    def noisy(self, sums, released, site):
        bare = [torch.full((math.prod(s.shape),), len(s.shape) == 0) for s in site.model.layout.slots]
        return torch.where(torch.cat(bare), sums.value, released)


@dataclass(frozen=True)
class ShuffledLoader(OneStep):
    """Goes through shuffled records batch by batch, each record once in a run, and says that batches are drawn."""

    def batch(self, state, site):
        orders = [
            np.random.default_rng(int(k)).permutation(n) for k, n in zip(site.rng.ids, site.data.sizes, strict=True)
        ]
        parts = [order[state.round :: site.plan.rounds] for order in orders]
        return site.data.pick(*flat(parts, site.data.sizes, site.data.x.device))


@dataclass(frozen=True)
class SharedByClients(OneStep):
    """Clients 2k and 2k + 1 draw the same noise: a seed that was copied with the program."""

    def noisy(self, sums, released, site):
        return Gaussian(site.plan.z).apply(sums, RowStream(site.rng.stream, site.rng.ids // 2), Use())


@dataclass(frozen=True)
class SharedByRounds(OneStep):
    """Every client starts its generator anew in every round."""

    def noisy(self, sums, released, site):
        return Gaussian(site.plan.z).apply(sums, Stream.research(5).rows(site.rng.ids), Use())


@dataclass(frozen=True)
class UnequalWeights(DpFedAvg):
    """Weighs updates by records, up to 7/4 of the mean, with the noise for weights of one."""

    def releases(self, plan, round=0, state=None):
        return tuple(replace(r, rows=False) for r in super().releases(plan, round, state))

    def message(self, update, state, site):
        weights = torch.tensor(site.data.sizes)[:, None] / site.plan.mean_client
        return Message({"update": site.out["update"](update) * weights})


QUIET = '''
"""A method for records that says z and adds z / 2."""
from dataclasses import dataclass
from sordino.methods.dp_sgd import DpSgd, Recipe, Whole
from sordino.privacy.mechanisms.gaussian import Gaussian

__all__ = ["{name}"]


@dataclass(frozen=True)
class Said(Gaussian):
    def apply(self, x, rng, use):
        return Gaussian(self.noise_multiplier * {factor}).apply(x, rng, use)


@dataclass(frozen=True)
class {name}(DpSgd):
    """DP-SGD with noise of its own."""

    def recipe(self):
        return Recipe(Whole(self.clip), Said)
'''


def plug_in(folder, name, factor):
    """Write a plug-in whose mechanism adds `factor` times the noise that it is priced for."""
    path = folder / "methods"
    path.mkdir(exist_ok=True)
    (path / f"{name}.py").write_text(QUIET.format(name=name.title(), factor=factor))
