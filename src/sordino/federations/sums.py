"""Messages as whole numbers that a secure sum can mask, and back.

Integer fields are added modulo 2^b, with the b of the channel. Real numbers become fixed-point numbers first: each
client rounds its own row, after its noise was added, which is post-processing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.channels.secure_sum import SecureSum
from sordino.contract.plan import Plan
from sordino.core.errors import RunError
from sordino.core.message import Message
from sordino.masking.fields import Ints, Layout, layout_of
from sordino.masking.fixed_point import FixedPoint
from sordino.masking.threshold import SumPolicy

FEWEST = 2  # members of a sum: alone, a client would show its row


def channel_of(plan: Plan) -> SecureSum:
    """Return the channel of a plan, which must be the secure sum: no other channel hides rows from a real server."""
    if not isinstance(plan.channel, SecureSum):
        raise RunError(f"channel = {plan.channel.name} hides rows in simulations only: use secure-sum.")
    return plan.channel


def policy_of(plan: Plan) -> SumPolicy:
    """Return what every member asks of a sum: by the plan, which each of them computes itself."""
    return SumPolicy(max(FEWEST, plan.smallest_cohort), plan.allowed_dropouts, plan.colluders)


def encoded(message: Message, plan: Plan) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """Return the sealed row of one client as whole numbers, and the modulus 2^b of every field."""
    arrays, bits = {}, {}
    for name, value in message.fields.items():
        row = value.detach().cpu()
        if row.is_floating_point():
            scale = FixedPoint(plan.population)
            arrays[name], bits[name] = scale.encode(row.double().numpy()), scale.bits
        else:
            arrays[name], bits[name] = row.long().numpy(), channel_of(plan).width(value)
    return arrays, bits


def layout(template: Message, plan: Plan) -> Layout:
    """Return the form of every upload, given the sealed row of one made-up client."""
    arrays, bits = encoded(template, plan)
    return layout_of({name: array.shape for name, array in arrays.items()}, bits)


def decoded(total: dict[str, Ints], template: Message, plan: Plan, weight: float | None) -> Message:
    """Return the sum of all rows as a message.

    Args:
        total: the sums, as signed numbers.
        template: the sealed row of one made-up client, which has the fields' types.
        plan: the plan of the run.
        weight: the sum of the public weights of the clients in the sum; None if rows have none.
    """
    fields = {}
    for name, like in template.fields.items():
        words = np.ascontiguousarray(total[name])
        if like.is_floating_point():
            fields[name] = torch.from_numpy(FixedPoint(plan.population).decode(words)).to(like.dtype)
        else:
            fields[name] = torch.from_numpy(words)
    heavy = None if weight is None else torch.tensor([weight], dtype=torch.float32)
    return Message(fields, heavy, None, heavy=True, summed=True)
