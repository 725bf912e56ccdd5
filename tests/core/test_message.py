"""Messages: what they weigh on the wire, and sums that are taken once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sordino.core.errors import RunError
from sordino.core.message import Message, together

UPDATE = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def test_bits_are_counted_as_bits():
    assert Message({"bit": torch.ones(300, dtype=torch.bool)}).bits == 300
    assert (
        Message({"place": torch.zeros(300, dtype=torch.int32), "bit": torch.zeros(300, dtype=torch.bool)}).bits == 9900
    )
    assert Message({"update": UPDATE}).bits == 6 * 32 and Message({"update": UPDATE.double()}).bits == 6 * 64
    assert Message({"update": UPDATE[:0]}).bits == 0


def test_weights_and_senders_are_public_and_cost_nothing_on_the_wire():
    plain, full = Message({"update": UPDATE}), Message({"update": UPDATE}, torch.tensor([1.0, 2.0, 0.5]), np.arange(3))
    assert plain.bits == full.bits == full.weighed().bits == full.weighted(torch.ones(3)).bits


def test_weighing_and_adding_up_happen_once():
    message = Message({"update": UPDATE}, torch.tensor([1.0, 2.0, 0.5]))
    total = message.total("update")
    assert total["update"].tolist() == [[9.5, 13.0]] and total.weight.tolist() == [3.5]
    assert total.total()["update"].tolist() == message.weighed().weighed().total()["update"].tolist() == [[9.5, 13.0]]


def test_whole_numbers_have_no_weighted_sum():
    with pytest.raises(RunError, match=r"the field count holds torch.int64, which has no weighted sum"):
        Message({"count": torch.tensor([1, 2])}, torch.tensor([1.0, 2.0])).weighed()
    assert Message({"count": torch.tensor([1, 2])}).total()["count"].tolist() == [3]


def test_rows_that_are_put_together_are_released_where_all_of_them_are():
    one = Message({"bit": UPDATE, "size": UPDATE}, released=frozenset(["bit", "size"]))
    other = Message({"bit": UPDATE, "size": UPDATE}, released=frozenset(["bit"]))
    assert together([one, other]).released == {"bit"} and one.pick(torch.tensor([0])).released == {"bit", "size"}
