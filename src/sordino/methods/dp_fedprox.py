"""DP-FedProx: local DP-SGD with a proximal term.

Li et al. (2020), arXiv:1812.06127, Eq. (2), with the noisy gradients of Abadi et al. (2016), arXiv:1607.00133,
Algorithm 1.

Protects a record from the server, as DP-SGD inside every client does (see dp_sgd.py): sound, and at the same cost. The
term mu (w - w_t) of a local step is computed from the client's weights, which moved only by noisy gradients, and from
the model that the server sent: it is post-processing, which depends on no record directly and needs no clip or noise of
its own.

Differs from the paper: a fixed number of noisy local steps in place of a gamma-inexact minimisation. The proximal term
takes effect from the second local step on: use local_steps above 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from sordino.methods.dp_sgd import DpSgd

__all__ = ["DpFedProx"]


@dataclass(frozen=True)
class DpFedProx(DpSgd):
    """DP-SGD with the algorithm FedProx."""

    algorithm: ClassVar[str] = "fedprox"
    algorithms: ClassVar[tuple[str, ...]] = ("fedprox",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)  # a secure sum needs one local step, at which the term is zero
