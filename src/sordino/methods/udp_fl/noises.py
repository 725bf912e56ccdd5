"""The noise mechanisms that UDP-FL chooses among, with their privacy events; harmonised.py describes their geometry.

Rows may have their own multipliers. An infinite multiplier means that nothing of the row is released: it gets no noise
here, and the outlet sets it to zero. None of these mechanisms can be split among clients, because shares of Laplace or
staircase noise do not add up to Laplace or staircase noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.core.rng import RowStream
from sordino.core.types import Rows
from sordino.methods.udp_fl import harmonizer
from sordino.privacy.clip import Bounded
from sordino.privacy.events import Event
from sordino.privacy.mechanisms.gaussian import Gaussian
from sordino.privacy.mechanisms.laplace import LaplaceEvent, LaplaceL2Event
from sordino.privacy.mechanisms.staircase_ball import StaircaseBallEvent
from sordino.privacy.release import Mechanism, Use


def laplace(rng: RowStream, like: Rows) -> Rows:
    """Return samples of Lap(0, 1) with the shape and device of `like`.

    For independent normals X and Y, (X^2 + Y^2) / 2 is Exp(1), and the sign of X is independent of it."""
    dim = like.shape[1]
    x, y = rng.normal(2 * dim, like).chunk(2, dim=1)
    return torch.sign(x) * (x * x + y * y) / 2


@dataclass(frozen=True)
class RowLaplace:
    """Adds Lap(noise_multiplier * bound) to every coordinate, sampled from normals on the device of the rows."""

    noise_multiplier: float
    norm: float = 2  # p of the bound's Lp norm: 2 is charged by its zCDP, 1 as pure DP

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        _unshared(use, "laplace")
        z = self.noise_multiplier if use.multiplier is None else use.multiplier.to(x.value)
        return x.value + z * x.bound * laplace(rng, x.value)

    def event(self, split: int = 1) -> Event:
        return LaplaceEvent(self.noise_multiplier) if self.norm == 1 else LaplaceL2Event(self.noise_multiplier)

    def std(self, bound: float) -> float:
        return math.sqrt(2) * self.noise_multiplier * bound


@dataclass(frozen=True)
class RowStaircase:
    """Adds L1-ball staircase noise with epsilon = 1 / noise_multiplier and the bound as its step."""

    noise_multiplier: float
    dim: int  # dimension of the rows

    norm: ClassVar[float] = 1

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        _unshared(use, "staircase")
        if use.multiplier is None:
            ball = harmonizer.ball(1 / self.noise_multiplier, self.dim)
            return ball.add(Bounded(x.value, x.bound, norm=1), rng)
        out, multipliers = x.value.clone(), use.multiplier[:, 0]
        for z in sorted(set(multipliers[torch.isfinite(multipliers)].tolist())):
            mask = multipliers == z
            part = RowStream(rng.stream, rng.ids[mask.cpu().numpy()])
            out[mask] = harmonizer.ball(1 / z, self.dim).add(Bounded(x.value[mask], x.bound, norm=1), part)
        return out

    def event(self, split: int = 1) -> Event:
        return StaircaseBallEvent(1 / self.noise_multiplier)

    def std(self, bound: float) -> float:
        if self.dim > harmonizer.FEW:
            return math.sqrt(2) * self.noise_multiplier * bound
        return math.sqrt(harmonizer.ball(1 / self.noise_multiplier, self.dim).variance(bound, self.dim))


NOISES: dict[str, Callable[[float, int], Mechanism]] = {
    "gaussian": lambda z, dim: Gaussian(z),
    "l2-laplace": lambda z, dim: RowLaplace(z, norm=2),
    "laplace": lambda z, dim: RowLaplace(z, norm=1),
    "staircase": RowStaircase,
}


@dataclass(frozen=True)
class ByRho:
    """Adds the named noise and charges it by rho = 1 / (2 noise_multiplier^2) alone, which holds for each of them."""

    noise_multiplier: float
    name: str = "gaussian"
    dim: int = 1

    @property
    def acting(self) -> Mechanism:
        """The mechanism that adds the noise."""
        return NOISES[self.name](self.noise_multiplier, self.dim)

    @property
    def norm(self) -> float:
        """p of the Lp norm that the mechanism needs its bound in."""
        return harmonizer.NORMS[self.name]

    def apply(self, x: Bounded, rng: RowStream, use: Use) -> Rows:
        return self.acting.apply(x, rng, use)

    def event(self, split: int = 1) -> Event:
        return LaplaceL2Event(self.noise_multiplier)

    def std(self, bound: float) -> float:
        wide = harmonizer.bound(self.name, self.dim)
        return harmonizer.deviation(self.name, self.noise_multiplier, self.dim) / wide * bound


def noise(name: str, z: float, dim: int, by_rho: bool = False) -> Mechanism:
    """Return the named mechanism for rows of `dim` numbers; with `by_rho` it is charged by its rho alone."""
    return ByRho(z, name, dim) if by_rho else NOISES[name](z, dim)


def _unshared(use: Use, name: str) -> None:
    """Refuse to split the noise among clients."""
    if use.split > 1:
        raise SpecError(f"{name} noise is not shared among clients: use channel = direct, or gaussian noise.")
