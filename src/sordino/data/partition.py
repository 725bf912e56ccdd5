"""Arrays -> clients: which records go to whom."""

import numpy as np
from numpy.typing import NDArray

from sordino.core.errors import DataError
from sordino.core.rng import Stream

__all__ = ["iid"]


def iid(records: int, clients: int, rng: Stream) -> list[NDArray[np.int64]]:
    """A random split into parts whose sizes differ by at most one."""
    if clients > records:
        raise DataError(f"cannot give each of {clients} clients a record: there are {records} records.")
    return [np.sort(part) for part in np.array_split(rng.permutation(records), clients)]
