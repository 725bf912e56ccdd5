"""Individual accounting: each record pays for its own contribution and leaves before its own budget is exceeded.

In a Gaussian release of standard deviation std, a record whose clipped contribution has norm c pays c^2 / (2 std^2) of
rho instead of the worst case of the clip bound. Feldman and Zrnic (2021), arXiv:2008.11193: if a record takes part only
while its own sum of rho stays within the budget, the whole process is as private as the budget says. With the budget
mu^2 / 2 of an exact GDP level: Koskela, Tobaben, Honkela (2023), arXiv:2209.15596. The relation is add/remove, and the
release must be plain Gaussian noise on a sum (amplification by a secret batch draw is not used).

The sums depend on the data of their records and are private, so they never leave this class. Only the mask of records
that still take part is returned, for the trainer, which must not publish it.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.core import check
from sordino.core.errors import SpecError
from sordino.privacy.accountants import gdp

Bools = NDArray[np.bool_]


class Individual:
    """The private accounts of `records` records, each with the budget `rho` (zCDP)."""

    __slots__ = ("__spent", "rho")

    def __init__(self, records: int, rho: float) -> None:
        check.count(records=records)
        check.positive(rho=rho)
        self.rho = float(rho)
        self.__spent = np.zeros(records)

    @staticmethod
    def of(records: int, epsilon: float, delta: float) -> Individual:
        """Return accounts that together are (epsilon, delta)-DP: rho = mu^2 / 2 at the exact GDP level."""
        check.positive(epsilon=epsilon)
        check.below_one(delta=delta)
        return Individual(records, gdp.mu_for(epsilon, delta) ** 2 / 2)

    def __repr__(self) -> str:  # keeps the accounts out of logs
        return f"Individual(records={len(self.__spent)}, rho={self.rho:g})"

    def __reduce__(self) -> Any:
        raise TypeError("individual accounts are private and are not written to a file")

    @overload
    def admit(self, norms: Tensor, std: float, ids: Any = None) -> Tensor: ...

    @overload
    def admit(self, norms: NDArray[Any], std: float, ids: Any = None) -> Bools: ...

    def admit(self, norms: Any, std: float, ids: Any = None) -> Any:
        """Charge the records of a release and return the mask of those that may take part.

        A contribution that does not fit must be left out of the sum entirely, and its record never returns. The same
        applies to a record whose norm is not finite.

        Args:
            norms: norms [n] of the clipped contributions.
            std: standard deviation of the noise of the release.
            ids: records that the norms belong to [n]; all of them, in order, if None.

        Returns:
            The mask [n].
        """
        check.positive(std=std)
        if isinstance(norms, Tensor):
            coarse = torch.finfo(norms.dtype).eps if norms.is_floating_point() else 0.0
            mask = self._admit(norms.detach().double().cpu().numpy(), coarse, std, ids)
            return torch.from_numpy(mask).to(norms.device)
        array = np.asarray(norms)
        coarse = float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0
        return self._admit(array.astype(np.float64), coarse, std, ids)

    def _admit(self, norms: NDArray[np.float64], coarse: float, std: float, ids: Any) -> Bools:
        where = np.arange(len(self.__spent)) if ids is None else np.asarray(ids)
        if norms.ndim != 1 or where.shape != norms.shape:
            raise SpecError(f"expected one norm per record: {norms.shape} norms for {where.shape} records.")
        if len(where) and (where.dtype.kind not in "iu" or where.min() < 0 or where.max() >= len(self.__spent)):
            raise SpecError(f"record ids must be whole numbers from 0 to {len(self.__spent) - 1}.")
        if ids is not None and len(np.unique(where)) != len(where):
            raise SpecError("a record is named twice in one release.")
        where = where.astype(np.int64)
        # `coarse` covers the rounding of the norm to its dtype, 1e-12 the arithmetic here
        with np.errstate(over="ignore"):
            paid = (np.abs(norms) * (1 + coarse) / std) ** 2 / 2 * (1 + 1e-12)
        total = self.__spent[where] + np.where(np.isfinite(paid), paid, np.inf)
        self.__spent[where] = total
        return np.asarray(total <= self.rho)
