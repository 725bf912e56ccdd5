"""The public facts about the clients' data, which the server may know; computed where the data are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sordino.data.clients import ArrayClients
from sordino.federations.facts import Facts


def of_clients(held: Any) -> Facts:
    """Return the public facts about clients that are in memory or made on demand."""
    first = held.fetch([0], torch.device("cpu"))
    x, y = ((tuple(v.shape[1:]), v.dtype) for v in (first.x, first.y))
    if not isinstance(held, ArrayClients):
        return Facts(held.count, np.array(held.sizes()), held.mean_size(), x, y)
    known = held.users is not None
    return Facts(
        population=held.count,
        records=held.all_sizes(),
        mean=held.mean_size(),
        x=x,
        y=y,
        users=np.array([len(runs) for runs in held.user_runs()]) if known else None,
        people=len(np.unique(np.asarray(held.users))) if known else 0,
        spread=held.most_clients_per_user() if known else 1,
        tags=None if held.tags is None else int(held.tags.max()),
    )
