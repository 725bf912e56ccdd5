"""Which records are private: the rule, the file, and that a mark stays with its record."""

import numpy as np
import pytest
import torch

from sordino.core.errors import DataError, SpecError
from sordino.data import tags
from sordino.data.clients import ArrayClients, LazyClients, adopt
from sordino.runs.prepare import prepare, with_tags, with_users
from sordino.spec import spec
from support.problems import federation

CPU = torch.device("cpu")
X = torch.arange(24.0).reshape(8, 3)
Y = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])


def read(rule, x=X, y=Y, classes=4):
    return tags.read(rule, x, y, classes).tolist()


def test_classes_make_groups():
    assert read("label:1") == [0, 1, 0, 0, 0, 1, 0, 0]
    assert read("label:1,3") == [0, 1, 0, 1, 0, 1, 0, 1]
    assert read("label:3;1") == [0, 2, 0, 1, 0, 2, 0, 1]  # in the order in which they are named
    assert read("label:0,2; 3") == [1, 0, 1, 2, 1, 0, 1, 2]


def test_a_number_above_or_below_a_bound_marks_a_record():
    assert read("feature:0>9") == [0, 0, 0, 0, 1, 1, 1, 1]  # 0, 3, 6, 9, 12, ...: above means above
    assert read("feature:2<5") == [1, 0, 0, 0, 0, 0, 0, 0]
    assert read("feature:1 > -1e3") == [1] * 8
    pictures = (X.reshape(8, 1, 3, 1) * 10).to(torch.uint8)
    assert read("feature:2>100", pictures) == [0, 0, 0, 1, 1, 1, 1, 1]  # of the record laid flat
    assert read("feature:0<1.5", X, torch.zeros(8), None) == [1] + [0] * 7  # needs no classes


def test_a_file_has_one_number_a_record(tmp_path):
    path = tmp_path / "mask.npy"
    for kept in (np.array([0, 1, 2, 0, 0, 3, 0, 1]), np.array([True, False] * 4), np.arange(8, dtype=np.uint8)):
        np.save(path, kept)
        assert read(f"file:{path}") == kept.astype(int).tolist()


@pytest.mark.parametrize(
    "rule",
    ["", "8", "label", "label:", "label:4", "label:-1", "label:a", "label:1,", "label:1;", "label:1,1", "label:1;1",
     "label:1.0", "feature:", "feature:3>0", "feature:a>0", "feature:1=0", "feature:1>", "feature:-1>0",
     "feature:1>nan", "labels:1", "mask:1"],
)  # fmt: skip
def test_a_rule_that_says_nothing_is_refused_in_one_line(rule):
    with pytest.raises(SpecError, match="private_data") as found:
        read(rule)
    assert "\n" not in str(found.value)


def test_classes_need_classes():
    for y, classes in ((torch.zeros(8), None), (torch.zeros(8, 2, dtype=torch.int64), 4), (Y, None)):
        with pytest.raises(SpecError, match="class labels"):
            read("label:1", X, y, classes)


def test_a_file_that_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "mask.npy"
    for bad in (np.zeros(7, int), np.zeros((8, 1), int), np.full(8, -1), np.zeros(8), np.array(["a"] * 8)):
        np.save(path, bad)
        with pytest.raises(DataError, match="8 records"):
            read(f"file:{path}")
    np.save(path, np.array([{}] * 8, dtype=object), allow_pickle=True)
    for name in (str(path), str(tmp_path / "none.npy"), str(tmp_path)):
        with pytest.raises(DataError, match="private_data"):
            read(f"file:{name}")
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(DataError):
        read(f"file:{tmp_path / 'empty.npy'}")


# --- a mark stays with its record


def marked(sizes=(4, 3, 5)):
    """Records that carry their own number, and a tag that is the number modulo 3."""
    n = sum(sizes)
    return ArrayClients(
        torch.arange(n, dtype=torch.float32)[:, None], torch.zeros(n).long(), sizes, tags=torch.arange(n) % 3
    )


def follows(batch):
    return batch.tags.tolist() == [int(v) % 3 for v in batch.x[:, 0]]


def test_clients_hand_out_marks_with_their_records():
    held = marked()
    for ids in ([0, 1, 2], [1], [2, 0], [0, 2]):
        batch = held.fetch(ids, CPU)
        assert follows(batch) and len(batch.tags) == sum(batch.sizes)
    assert held.fetch([], CPU).tags.shape == (0,)
    assert follows(held.to(CPU).fetch([1, 2], CPU))
    parts = [np.array([11, 3, 0]), np.array([5, 4])]
    dealt = ArrayClients.split(held.x, held.y, parts, tags=held.tags)
    assert follows(dealt.fetch([0, 1], CPU)) and dealt.fetch([0], CPU).tags.tolist() == [2, 0, 0]
    assert adopt(federation()).fetch([0], CPU).tags is None


def test_batches_keep_the_marks_of_what_they_keep():
    batch = marked().fetch([0, 1, 2], CPU)
    assert follows(batch.pick(torch.tensor([7, 2, 9]), (1, 1, 1)))
    for g in range(3):
        part = batch.where(batch.tags == g)
        assert follows(part) and part.tags.tolist() == [g] * 4
        assert part.sizes == tuple(sum(1 for v in range(a, b) if v % 3 == g) for a, b in ((0, 4), (4, 7), (7, 12)))
    nobody = batch.where(batch.tags > 5)
    assert nobody.sizes == (0, 0, 0) and len(nobody.y) == 0


def test_ones_own_clients_bring_one_number_a_record():
    held = adopt(federation((4, 3)))
    found = with_tags(held, [[0, 1, 2, 0], np.array([True, False, True])])
    assert found.tags.tolist() == [0, 1, 2, 0, 1, 0, 1]
    for bad in ([[0, 1, 2, 0]], [[0, 1, 2], [0, 0, 0]], [[0, 1, 2, -1], [0, 0, 0]], [[0.5] * 4, [0] * 3], 3):
        with pytest.raises(DataError, match="private_data"):
            with_tags(held, bad)
    with pytest.raises(DataError, match="in memory"):
        with_tags(LazyClients(2, 3, lambda i: (torch.zeros(3, 1), torch.zeros(3))), [[0] * 3] * 2)


def test_users_and_marks_go_together():
    held = marked()
    users = [[1, 2, 1, 2], [3, 3, 4], [5, 6, 5, 6, 5]]
    found, _ = with_users(held, users, spec.from_dict({"unit": "user", "records_per_user": 2}))
    assert follows(found.fetch(range(found.count), CPU))


# --- keys of a run


def prepared(small_npz, **keys):
    keys = {"dataset": str(small_npz), "clients": 4, "method": "none", "seed": 1} | keys
    return prepare(spec.from_dict(keys))


def test_the_rule_marks_the_training_records_whatever_client_they_come_to(small_npz):
    found = prepared(small_npz, private_data="label:1;0", partition="quantity:0.5").clients
    assert found.count == 4 and found.tags.tolist() == [{1: 1, 0: 2}.get(v, 0) for v in found.y.tolist()]
    assert prepared(small_npz).clients.tags is None


def test_a_file_is_in_the_order_of_the_data(small_npz, tmp_path):
    with np.load(small_npz) as data:
        chosen = data["x_train"][:, 0] > 0
    np.save(tmp_path / "mask.npy", chosen)
    found = prepared(small_npz, private_data=f"file:{tmp_path / 'mask.npy'}")
    by_rule = prepared(small_npz, private_data="feature:0>0")
    assert found.clients.tags.tolist() == (found.clients.x[:, 0] > 0).long().tolist()
    assert torch.equal(found.clients.tags, by_rule.clients.tags) and 0 < int(found.clients.tags.sum()) < 96


def test_the_last_clients_hold_no_private_record(small_npz):
    whole, found = (prepared(small_npz, private_data="label:2", without_private=k) for k in (0, 2))
    for k in range(4):
        before, now = whole.clients.fetch([k], CPU), found.clients.fetch([k], CPU)
        if k < 2:
            assert torch.equal(before.x, now.x) and int(now.tags.sum()) > 0
        else:
            assert int(now.tags.sum()) == 0 and torch.equal(before.x[before.tags == 0], now.x)
    assert found.brought.all_sizes().tolist() == [96]  # what a ledger knows the data by


def test_what_cannot_be_left_out_is_refused(small_npz):
    with pytest.raises(SpecError, match="private_data"):
        prepared(small_npz, without_private=1)
    with pytest.raises(SpecError, match="without_private"):
        prepared(small_npz, private_data="label:2", without_private=4)
    with pytest.raises(DataError, match="without any record"):
        prepared(small_npz, private_data="label:0,1,2", without_private=1)
    with pytest.raises(SpecError):
        prepared(small_npz, private_data="label:2", without_private=-1)
