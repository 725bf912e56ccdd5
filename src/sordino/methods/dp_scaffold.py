"""DP-SCAFFOLD: control variates against client drift, from noisy gradients only.

Noble, Bellet, Dieuleveut (2022), arXiv:2111.09278, Algorithm 1.

Protects a record from the server, as DP-SGD inside every client does (see dp_sgd.py): sound, and at the same cost. A
client's control variate c_i is (x - y_i) / (K lr), the mean of the noisy gradients of its own local steps, and the
server's c is a mean of these. Neither accesses a record again, so both are post-processing of what was charged: sending
c_i beside the weights, keeping it between rounds and correcting later steps by c - c_i cost nothing.

Differs from the paper: control variates start at zero (no warm start); the server sees who takes part, so sampling of
clients amplifies privacy against the public only; accounting is exact composition instead of a closed form. Control
variates take effect from the second local step on: use local_steps above 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from sordino.methods.dp_sgd import DpSgd

__all__ = ["DpScaffold"]


@dataclass(frozen=True)
class DpScaffold(DpSgd):
    """DP-SGD with the algorithm SCAFFOLD."""

    algorithm: ClassVar[str] = "scaffold"
    algorithms: ClassVar[tuple[str, ...]] = ("scaffold",)
    channels: ClassVar[tuple[str, ...]] = ("direct",)  # a secure sum would hide which c_i changed
