"""FedAvg: the server adds the mean of the clients' weight changes.

McMahan et al. (2017), arXiv:1602.05629, Algorithm 1.

Differs from the paper: the server may scale the mean by its own learning rate (Reddi et al. 2021).
"""

from dataclasses import dataclass

from sordino.algorithms.base import Algorithm

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """The base algorithm, without changes."""

    pass
