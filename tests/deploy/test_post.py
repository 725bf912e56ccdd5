"""The post over Flower, with a stand-in for Flower's grid: slow, hanging, late and doubled answers, and outages."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.sites import LocalPost, agree, local_sites

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from sordino.deploy import gathering
from sordino.deploy.agreement import checked
from sordino.deploy.flower_post import FlowerPost
from sordino.deploy.site_account import read_ledger
from sordino.deploy.template.client import UNREACHABLE
from sordino.federations import letters
from sordino.runs import run

KEYS: dict[str, Any] = {
    "dataset": "breast-cancer", "clients": 3, "rounds": 4, "epsilon": 4.0, "seed": 1, "normalise": "none",
}  # fmt: skip
HELLO = letters.packed({"verb": "anything"})
Change = Callable[[int, Message, bytes], Message | None]  # node, request, the site's answer -> Flower's reply


def reply_with(request: Message, data: bytes) -> Message:
    array = Array(dtype="uint8", shape=(len(data),), stype="sordino.bytes", data=data)
    return Message(RecordDict({"sordino": ArrayRecord({"bytes": array})}), reply_to=request)


class Grid:
    """Sites as nodes 11, 12, ...

    `delay` holds answers back, `change` replaces them, `down` makes so many calls fail, and `away` shows nobody online
    for so many looks.
    """

    def __init__(self, post: LocalPost) -> None:
        self.sites = {11 + k: site for k, site in enumerate(post.sites.values())}
        self.online, self.delay, self.down = list(self.sites), dict[int, float](), 0
        self.change: Change = lambda node, request, data: reply_with(request, data)
        self.doubled, self.away = False, 0
        self._ready: dict[str, tuple[float, Message]] = {}
        self.count = 0

    def get_node_ids(self) -> list[int]:
        self._reachable()
        self.away -= 1
        return [] if self.away >= 0 else self.online

    def push_messages(self, messages: list[Message]) -> list[str]:
        self._reachable()
        out = []
        for message in messages:
            self.count += 1
            name, node = f"message {self.count}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name
            answer = self.sites[node].answer(bytes(message.content["sordino"]["bytes"].data))
            reply = self.change(node, message, answer)
            if reply is not None:
                reply.metadata.__dict__["_reply_to_message_id"] = name
                self._ready[name] = (time.monotonic() + self.delay.get(node, 0.0), reply)
            out.append(name)
        return out

    def pull_messages(self, ids: list[str]) -> list[Message]:
        self._reachable()
        now = [name for name in ids if name in self._ready and self._ready[name][0] <= time.monotonic()]
        out = [self._ready[name][1] for name in now]
        if self.doubled:
            return out + out  # an answer that Flower delivers again
        for name in now:
            del self._ready[name]
        return out

    def _reachable(self) -> None:
        if self.down > 0:
            self.down -= 1
            raise ConnectionError("the SuperLink is being restarted")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalPost, Grid, FlowerPost]:
    monkeypatch.setattr("sordino.deploy.flower_post.EVERY", 0.02)
    monkeypatch.setattr("sordino.deploy.flower_post.PAUSE", 0.02)
    monkeypatch.setattr("sordino.deploy.flower_post.RETRY", 0.02)
    monkeypatch.setattr("sordino.deploy.flower_post.AGAIN", 0.02)
    monkeypatch.setattr("sordino.deploy.flower_post.GRACE", 0.2)
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    local = local_sites(tmp_path / "sites", "breast-cancer")
    grid = Grid(local)
    return local, grid, FlowerPost(grid, local.roster, timeout=1.0)  # type: ignore[arg-type]


def everyone(local: LocalPost) -> dict[str, bytes]:
    return dict.fromkeys(local.sites, HELLO)


def test_a_hanging_site_is_silent_at_the_deadline_and_its_late_answer_is_dropped(made) -> None:
    local, grid, post = made
    assert set(post.exchange(everyone(local)).answered) == set(local.sites)
    grid.delay[12] = 1.2
    began = time.monotonic()
    replies = post.exchange(everyone(local))
    assert set(replies.answered) == {"site-1", "site-3"} and replies.silent == ["site-2"] and not replies.failed
    assert 0.9 < time.monotonic() - began < 5.0
    time.sleep(0.3)
    grid.delay.clear()
    other = letters.packed({"verb": "something else"})
    replies = post.exchange(dict.fromkeys(local.sites, other))  # the late answer to the first is not taken for this
    assert set(replies.answered) == set(local.sites)


def test_a_slow_site_is_waited_for(made) -> None:
    local, grid, post = made
    grid.delay[12] = 0.3
    assert set(post.exchange(everyone(local)).answered) == set(local.sites)


def test_a_late_joiner_is_found_when_it_comes(made) -> None:
    local, grid, post = made
    grid.online = [11, 13]
    assert post.exchange(everyone(local)).silent == ["site-2"]
    grid.online = [11, 12, 13]
    assert set(post.exchange(everyone(local)).answered) == set(local.sites)


def test_nothing_is_sent_while_nobody_at_all_is_online(made) -> None:
    local, grid, post = made
    post.exchange(everyone(local))
    before, grid.away = grid.count, 3  # the server is cut off for a while
    assert set(post.exchange(everyone(local)).answered) == set(local.sites)
    assert grid.away < 0 and grid.count == before + 3
    before, grid.online = grid.count, []
    replies = post.exchange(everyone(local))  # for good: after the time for answers it goes on
    assert grid.count == before + 3  # to the nodes that it knows
    assert set(replies.answered) | set(replies.silent) == set(local.sites)


def test_an_answer_that_arrives_twice_counts_once(made) -> None:
    local, grid, post = made
    grid.doubled = True
    replies = post.exchange(everyone(local))
    assert set(replies.answered) == set(local.sites) and not replies.failed and not replies.silent


def test_a_superlink_that_is_restarted_costs_no_answer(made) -> None:
    local, grid, post = made
    assert len(post.exchange(everyone(local)).answered) == 3
    grid.down = 3  # of the calls that push and pull
    assert set(post.exchange(everyone(local)).answered) == set(local.sites)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda request, data: Message(Error(code=5, reason="patient 4711"), reply_to=request), "error 5"),
        (lambda request, data: reply_with(request, b"garbage"), "not signed"),
        (lambda request, data: reply_with(request, data[:-1] + b"\0"), "not signed"),
        (lambda request, data: Message(RecordDict(), reply_to=request), "no letter"),
    ],
    ids=["an error of Flower", "garbage", "a changed byte", "an empty message"],
)
def test_what_is_no_answer_of_the_site_fails_and_the_others_go_on(made, change, why) -> None:
    local, grid, post = made
    post.exchange(everyone(local))
    grid.change = lambda node, request, data: change(request, data) if node == 12 else reply_with(request, data)
    replies = post.exchange(everyone(local))
    assert set(replies.answered) == {"site-1", "site-3"}
    assert why in replies.failed["site-2"] and "4711" not in replies.failed["site-2"]


@pytest.mark.parametrize("how", ["error", "unreachable"])
def test_a_letter_that_was_lost_is_sent_again_if_the_site_was_there_before(made, how: str) -> None:
    local, grid, post = made
    lost = 3

    def change(node: int, request: Message, data: bytes) -> Message:
        nonlocal lost
        if node != 12 or not lost:
            return reply_with(request, data)
        lost -= 1
        return Message(Error(code=5), reply_to=request) if how == "error" else reply_with(request, UNREACHABLE)

    post.exchange(everyone(local))
    grid.change = change
    assert set(post.exchange(everyone(local)).answered) == set(local.sites) and lost == 0

    lost = 10**9  # it does not come back: waited for once, and not again until it has answered
    tries = []
    for _ in range(2):
        before = grid.count
        replies = post.exchange(everyone(local))
        assert set(replies.failed) == {"site-2"} and set(replies.answered) == {"site-1", "site-3"}
        tries.append(grid.count - before - 2)
    assert tries[0] > 1 and tries[1] == 1


def test_a_message_that_is_lost_without_a_word_is_sent_again_once(made) -> None:
    local, grid, post = made
    post.exchange(everyone(local))
    lost = [12]
    grid.change = lambda node, request, data: (
        lost.remove(node) if node in lost else reply_with(request, data)  # type: ignore[func-returns-value]
    )
    before = grid.count
    assert set(post.exchange(everyone(local)).answered) == set(local.sites)
    assert grid.count == before + 4 and not lost
    lost = [12, 12, 12]
    before = grid.count
    assert post.exchange(everyone(local)).silent == ["site-2"]
    assert grid.count == before + 4


def test_the_answer_of_another_site_is_refused(made) -> None:
    local, grid, post = made
    post.exchange(everyone(local))
    grid.change = lambda node, request, data: reply_with(request, grid.sites[11].answer(HELLO))
    replies = post.exchange(everyone(local))
    assert set(replies.answered) == {"site-1"} and set(replies.failed) == {"site-2", "site-3"}


def test_a_run_over_a_grid_with_faults_pays_for_what_it_lost_and_releases_nothing_twice(made, tmp_path: Path) -> None:
    local, grid, post = made
    test = gathering.public_test(checked(KEYS), None, None, None)
    agreement = agree(local, KEYS, test)
    gathering.open_everywhere(post, agreement)
    job = gathering.federated(post, local.roster, agreement, test, out=str(tmp_path / "runs"))
    rounds = iter((lambda: grid.delay.update({12: 9.0}), lambda: setattr(grid, "down", 2), grid.delay.clear))

    def watch(record: Any) -> None:
        next(rounds, lambda: None)()

    grid.doubled = True
    result = run.execute(job, own_model=False, watch=watch)
    status = job.federation.status  # type: ignore[attr-defined]
    assert [status[f"site-{k}"].participations for k in (1, 2, 3)] == [4, 2, 4]
    assert len(result.history) == 4 and not any(record.lost for record in result.history)
    paid = []
    for site in local.sites.values():
        with read_ledger(site.folder) as ledger:
            paid.append(len(list(ledger.chain.select("kind = 'round'"))))
    assert paid == [4, 4, 4]  # what was computed and came too late is spent
