"""DP-FedProx: local DP-SGD on a spring to the received model.  Li et al. (2020), arXiv:1812.06127, Eq. (2), with the
noisy gradients of Abadi et al. (2016), arXiv:1607.00133, Algorithm 1.

Protects a record from the server, as DP-SGD inside every client does (see dp_sgd.py): sound, and at the same price. The
pull mu (w - w_t) of a local step is computed from the client's weights, which moved by noisy gradients alone, and from
the model that the server sent: post-processing, with no record in it and no clip or noise of its own.

Differs from the paper: a fixed number of noisy local steps in place of a gamma-inexact minimisation. The spring acts
from the second local step on: use local_steps above 1."""

from dataclasses import dataclass
from typing import ClassVar

from sordino.methods.dp_sgd import DpSgd

__all__ = ["DpFedProx"]


@dataclass(frozen=True)
class DpFedProx(DpSgd):
    algorithm: ClassVar[str] = "fedprox"
    algorithms: ClassVar[tuple[str, ...]] = ("fedprox",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)  # a secure sum takes one local step, where the spring is slack
