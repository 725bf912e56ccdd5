"""Observers and files hold what a viewer saw, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.core import plugin
from sordino.core.errors import RunError, SpecError
from sordino.core.message import Message
from sordino.core.types import State
from sordino.core.view import View
from sordino.run_folder.views import ViewRecorder, read_views

ROUNDS = 3
PLUGINS = Path(__file__).parent.parent.parent / "examples" / "plugins"


class Stopped(BaseException):
    pass


def train(out, resume=None, watch=None, observe=None, **keys):
    draw = torch.Generator().manual_seed(1)
    clients = [(torch.randn(6, 5, generator=draw), torch.randint(0, 2, (6,), generator=draw)) for _ in range(6)]
    torch.manual_seed(0)
    usual = {"mode": "research", "rounds": ROUNDS, "client_rate": 0.6, "epsilon": 5.0, "method": "dp-fedavg"}
    usual |= {"adaptive_clip": True} if "method" not in keys else {}
    usual |= {"record_views": True, "out": str(out), "name": "it", "device": "cpu"}
    keys = {"resume": resume} if resume is not None else usual | {"checkpoint_seconds": 0.0} | keys
    return sordino.train(nn.Linear(5, 2), clients, watch=watch, observe=observe, **keys)


def equal(a, b):
    """Whether two views hold the same bits in the same types; variables may be of classes of the same fields."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if dataclasses.is_dataclass(a):
        return equal({f.name: getattr(a, f.name) for f in dataclasses.fields(a)}, vars(b))
    return type(a) is type(b) and a == b


def test_what_is_on_file_is_what_observers_saw(tmp_path):
    seen = []
    result = train(tmp_path, observe=seen.append)
    assert [(v.viewer, v.round, v.phase) for v in seen] == [
        look for t in range(1, ROUNDS + 1) for look in (("server", t, "train"), ("public", t, ""))
    ]
    for viewer in ("server", "public"):
        stored, wanted = read_views(result.folder, viewer), [v for v in seen if v.viewer == viewer]
        assert len(stored) == ROUNDS and all(equal(a, b) for a, b in zip(wanted, stored, strict=True))
    assert not any((result.folder / "public").rglob("*view*"))
    assert "record_views" not in (result.folder / "public" / "spec.toml").read_text()


def test_the_server_sees_rows_and_senders_and_the_public_models_alone(tmp_path):
    result = train(tmp_path)
    server, public = read_views(result.folder, "server"), read_views(result.folder, "public")
    for view, drawn in zip(server, result.private.history, strict=True):
        assert view.cohort is not None and len(view.cohort) == drawn.clients
        assert tuple(view.seen.ids.tolist()) == view.cohort and not view.seen.summed
        assert view.seen["update"].shape == (drawn.clients, 12) and view.state.round == view.round - 1
    assert all(v.cohort is None and v.seen is None and v.state.round == v.round for v in public)
    assert torch.equal(server[1].state.params, public[0].state.params)
    final = torch.cat([p.detach().flatten() for p in result.model.parameters()])
    assert torch.equal(public[-1].state.params, final)
    assert [float(v.state.method.clip) for v in server] == [r.clip for r in result.history]


def test_behind_a_secure_sum_the_server_saw_one_row_without_senders(tmp_path):
    seen = []
    train(tmp_path, method="dp-sgd", channel="secure-sum", client_rate=1.0, observe=seen.append)
    server = [v for v in seen if v.viewer == "server"]
    assert len(server) == ROUNDS
    for view in server:
        assert view.seen.summed and view.seen.ids is None and len(view.seen) == 1


def test_behind_a_shuffler_the_server_saw_rows_without_senders(tmp_path, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, str(PLUGINS))
    result = train(tmp_path, method="sign-bits", channel="shuffler", client_rate=1.0)
    for view in read_views(result.folder, "server"):
        assert view.seen.ids is None and view.seen.weight is None and len(view.seen) == 6 and not view.seen.summed


def test_rounds_that_are_played_again_overwrite(tmp_path):
    whole = train(tmp_path / "whole")

    def stop(record):
        if record.round == 2:
            raise Stopped

    with pytest.raises(Stopped):
        train(tmp_path / "cut", watch=stop, checkpoint_seconds=1000.0)  # goes on from the first round
    assert len(read_views(tmp_path / "cut" / "it", "public")) == 2
    resumed = train(tmp_path / "cut", resume=tmp_path / "cut" / "it")
    for viewer in ("server", "public"):
        one, other = (read_views(r.folder, viewer) for r in (whole, resumed))
        assert len(one) == len(other) == ROUNDS and all(equal(a, b) for a, b in zip(one, other, strict=True))


def test_types_and_phases_come_back(tmp_path):
    from sordino.run_folder.folder import RunFolder

    @dataclasses.dataclass(frozen=True)
    class Kept:
        rate: float
        steps: int
        done: bool
        bits: torch.Tensor
        gone: torch.Tensor | None = None

    shared = torch.arange(4.0)
    kept = Kept(0.5, 7, True, torch.tensor([True, False]))
    state = State(shared, 1, method=kept, average=shared)
    message = Message({"bits": torch.ones(2, 3, dtype=torch.bool), "count": torch.tensor([[5], [6]])}, None, None)
    record = ViewRecorder(RunFolder.create(str(tmp_path), "it"))
    views = [View("server", 2, phase, state, (4, 9), message) for phase in ("z first", "a second")]
    for view in views:
        record(view)
    found = read_views(tmp_path / "it", "server")
    assert [v.phase for v in found] == ["z first", "a second"]  # in the order in which they were seen
    assert all(equal(a, b) for a, b in zip(views, found, strict=True))
    assert isinstance(found[0].state.method.steps, int) and found[0].state.method.gone is None


def test_who_is_blind_gets_neither_cohort_nor_message():
    for more in ({"cohort": (1,)}, {"seen": Message({"x": torch.zeros(1)})}):
        for viewer in ("public", "client"):
            with pytest.raises(ValueError, match="neither"):
                View(viewer, 1, "", State(torch.zeros(1)), **more)


def test_without_the_key_there_are_none(tmp_path):
    result = train(tmp_path, record_views=False)
    with pytest.raises(RunError, match="record_views = true"):
        read_views(result.folder, "server")
    train(tmp_path / "b", rounds=1)
    with pytest.raises(RunError, match=r"no views of the server\+2: .* if the run has viewer = server\+2"):
        read_views(tmp_path / "b" / "it", "server+2")
    for wrong in ("*", "[sp]*", "..", ""):
        with pytest.raises(SpecError, match="viewer must be one of server, public, client"):
            read_views(tmp_path / "b" / "it", wrong)


def test_a_client_sees_broadcasts_and_a_wire_one_client_more(tmp_path):
    result = train(tmp_path, client_rate=1.0)
    server, client = read_views(result.folder, "server"), read_views(result.folder, "client")
    assert [v.viewer for v in client] == ["client"] * ROUNDS and all(
        v.seen is None and v.cohort is None for v in client
    )
    assert all(equal(a.state, b.state) for a, b in zip(server, client, strict=True))
    for view, whole in zip(read_views(result.folder, "wire:4"), server, strict=True):
        assert view.viewer == "wire:4" and view.seen.ids.tolist() == [4] and view.cohort == (4,)
        assert torch.equal(view.seen["update"][0], whole.seen["update"][4])
    masked = train(tmp_path / "b", method="dp-sgd", channel="secure-sum", client_rate=1.0)
    assert all(v.seen is None for v in read_views(masked.folder, "wire:4"))


def test_colluders_take_their_own_messages_out_of_a_sum(tmp_path):
    keys = {"method": "dp-sgd", "channel": "secure-sum", "client_rate": 1.0, "viewer": "server+2"}
    result = train(tmp_path, **keys)
    server, both = read_views(result.folder, "server"), read_views(result.folder, "server+2")
    rows = read_views(train(tmp_path / "b", method="none", channel="direct", client_rate=1.0).folder, "server")
    assert len(server) == len(both) == len(rows) == ROUNDS
    for one, other in zip(server, both, strict=True):
        assert one.seen.summed and other.seen.summed and other.viewer == "server+2"
        assert float(one.seen.weight[0]) == 6 and float(other.seen.weight[0]) == 4
        assert not torch.equal(one.seen["gradient"], other.seen["gradient"])
