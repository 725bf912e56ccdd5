"""Messages: named fields, public weights that count once, senders that a sum forgets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sordino.channels.direct import Direct
from sordino.channels.secure_sum import SecureSum
from sordino.core.errors import RunError
from sordino.core.message import Message, together
from sordino.core.rng import Stream

UPDATE = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
WEIGHT = torch.tensor([0.5, 1.0, 2.0])
TOTAL = [210.5, 421.0]  # 0.5 * 1 + 10 + 2 * 100, and twice that
RNG = Stream.research(0)


def message(**more):
    return Message({"update": UPDATE, **more}, WEIGHT, np.array([4, 7, 9]))


def test_a_total_is_the_weighted_sum_and_the_weight_of_all():
    total = message().total()
    assert total["update"].tolist() == [TOTAL] and total.weight.tolist() == [3.5]
    assert len(total) == 1 and total.ids is None  # nobody in particular sent a sum


def test_without_weights_every_row_counts_once():
    total = Message({"update": UPDATE}).total()
    assert total["update"].tolist() == [[111.0, 222.0]] and total.weight.tolist() == [3.0]


def test_rows_are_weighed_once_however_often_one_asks():
    one = message().weighed()
    assert one["update"].tolist() == [[0.5, 1.0], [10.0, 20.0], [200.0, 400.0]]
    for again in (one.weighed(), one.weighed().weighed()):
        assert torch.equal(again["update"], one["update"]) and torch.equal(again.weight, WEIGHT)
    assert torch.equal(message()["update"], UPDATE)  # and the message itself is as it was


@pytest.mark.parametrize(
    "way",
    [
        lambda m: m.total().total(),
        lambda m: m.weighed().total(),
        lambda m: m.weighed().weighed().total().total(),
        lambda m: m.total().weighed(),
        lambda m: m.total().weighed().total(),
        lambda m: m.total("update").total(),
        lambda m: (m.pick(torch.tensor([0])) + m.pick(torch.tensor([1, 2]))).total(),
        lambda m: (m.weighed().pick(torch.tensor([0])) + m.weighed().pick(torch.tensor([1, 2]))).total(),
    ],
)
def test_no_order_of_calls_weighs_twice(way):
    assert way(message())["update"].tolist() == [TOTAL]
    assert way(message()).weight.tolist() == [3.5]


@pytest.mark.parametrize("channel", [Direct(), SecureSum()], ids=lambda c: c.name)
def test_a_channel_followed_by_a_total_weighs_once(channel):
    """A secure sum weighs at the client and adds up; asking what arrived for its total must change nothing."""
    arrived = channel.carry(channel.seal(message(), [4, 7, 9]), RNG)
    assert arrived.total("update")["update"].tolist() == [TOTAL] and arrived.total().weight.tolist() == [3.5]
    assert len(arrived) == (3 if channel.shows_rows else 1)
    assert (arrived.ids is None) != channel.shows_rows


def test_a_factor_multiplies_weights_and_rows_that_have_them_already():
    factor = torch.tensor([1.0, 0.0, 0.5])
    light, heavy = message().weighted(factor), message().weighed().weighted(factor)
    assert torch.equal(light["update"], UPDATE) and light.weight.tolist() == [0.5, 0.0, 1.0]
    assert light.total()["update"].tolist() == heavy.total()["update"].tolist() == [[100.5, 201.0]]
    assert heavy.total().weight.tolist() == light.total().weight.tolist() == [1.5]
    assert Message({"update": UPDATE}).weighted(factor).total()["update"].tolist() == [[51.0, 102.0]]


def test_fields_of_any_shape_are_summed_by_row():
    cube = torch.arange(12.0).reshape(3, 2, 2)
    number = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    total = message(cube=cube, number=number).total()
    assert torch.equal(total["cube"][0], 0.5 * cube[0] + cube[1] + 2 * cube[2])
    assert total["number"].tolist() == [3.5] and total["number"].dtype == torch.float64


def test_named_fields_are_summed_alone_so_that_others_need_no_sum():
    sent = message(flag=torch.tensor([True, False, True]))
    assert list(sent.total("update").fields) == ["update"]
    with pytest.raises(RunError, match=r"the field flag holds torch\.bool, which cannot be summed with weights"):
        sent.total()
    with pytest.raises(RunError, match="flag"):
        sent.weighed()
    counted = Message({"flag": torch.tensor([[1, 0], [1, 1]])}).total()
    assert counted["flag"].tolist() == [[2, 1]] and counted["flag"].dtype == torch.int64


def test_rows_are_picked_with_their_weights_and_senders():
    sent = message(note=torch.tensor([1, 2, 3]))
    for at in (torch.tensor([2, 0]), torch.tensor([True, False, True])):
        some = sent.pick(at)
        assert sorted(some.ids.tolist()) == [4, 9] and len(some) == 2
        assert dict(zip(some.ids.tolist(), some.weight.tolist(), strict=True)) == {4: 0.5, 9: 2.0}
        assert dict(zip(some.ids.tolist(), some["note"].tolist(), strict=True)) == {4: 1, 9: 3}
    assert sent.pick(torch.tensor([2, 0])).ids.tolist() == [9, 4]  # in the order asked for
    assert len(sent.pick(torch.zeros(3, dtype=torch.bool))) == 0
    assert Message({"update": UPDATE}).pick(torch.tensor([1])).weight is None


def test_messages_are_put_together_row_by_row():
    all_rows = message() + message()
    assert len(all_rows) == 6 and all_rows.ids.tolist() == [4, 7, 9] * 2
    assert torch.equal(all_rows["update"], torch.cat([UPDATE, UPDATE]))
    assert together([message()]).ids.tolist() == [4, 7, 9]
    unknown = Message({"update": UPDATE}, WEIGHT)
    assert (message() + unknown).ids is None  # whose rows these are is no longer known of all


def test_put_together_a_row_without_a_weight_counts_once():
    bare = Message({"update": UPDATE})
    for both in (bare + message(), message() + bare):
        assert sorted(both.weight.tolist()) == [0.5, 1.0, 1.0, 1.0, 1.0, 2.0]
        assert both.total()["update"].tolist() == [[321.5, 643.0]]
    assert (bare + bare).weight is None


def test_bits_are_those_of_the_fields():
    assert message().bits == 3 * 2 * 32  # weights and senders are public already
    assert message(flag=torch.zeros(3, 5, dtype=torch.bool)).bits == 3 * 2 * 32 + 15
    assert Message({"count": torch.zeros(4, 2, dtype=torch.int64)}).bits == 4 * 2 * 64
    assert Message(
        {"double": torch.zeros(4, dtype=torch.float64), "byte": torch.zeros(4, 3, dtype=torch.uint8)}
    ).bits == (4 * 64 + 4 * 3 * 8)
    assert Message({"update": UPDATE[:0]}).bits == 0


def test_an_empty_message_has_an_empty_sum():
    nobody = Message({"update": UPDATE[:0]}, WEIGHT[:0], np.zeros(0, dtype=np.int64))
    for total in (nobody.total(), Message({"update": UPDATE[:0]}).total()):
        assert total["update"].tolist() == [[0.0, 0.0]] and total.weight.tolist() == [0.0]
    both = nobody + message()
    assert both.ids.tolist() == [4, 7, 9] and both.total()["update"].tolist() == [TOTAL]


def test_whole_numbers_are_added_as_the_protocol_adds_them():
    """Modulo 2^bits, read as signed numbers: a sum that fits comes out, however large the parts look in between."""
    channel = SecureSum(bits=8)

    def summed(*values):
        sent = Message({"count": torch.tensor(values)[:, None]})
        return channel.carry(channel.seal(sent, range(len(values))), RNG)["count"].item()

    assert summed(100, 100, -150) == 50 and summed(-128) == -128 and summed(127) == 127
    assert summed(127, 1) == -128  # one too many wraps, as it does behind the masks


def test_rows_that_are_put_together_are_released_where_all_of_them_are():
    one = Message({"bit": UPDATE, "size": UPDATE}, released=frozenset(["bit", "size"]))
    other = Message({"bit": UPDATE, "size": UPDATE}, released=frozenset(["bit"]))
    assert together([one, other]).released == {"bit"} and one.pick(torch.tensor([0])).released == {"bit", "size"}
