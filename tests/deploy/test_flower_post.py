"""The post over Flower: nothing is sent while nobody at all is online."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.sites import roster_of

pytest.importorskip("flwr")

from sordino.deploy import flower_post
from sordino.deploy import roster as rosters


class Grid:
    """Stands in for Flower: the nodes that are online at every look, and sites that answer whatever they get."""

    def __init__(self, online: Iterable[list[int]], identities: list[Any], roster: Any) -> None:
        self.online, self.identities, self.roster = iter(online), identities, roster
        self.looks, self.sent = 0, {}

    def get_node_ids(self) -> list[int]:
        self.looks += 1
        return next(self.online)

    def push_messages(self, messages: list[Any]) -> list[str]:
        new = {f"{len(self.sent) + i}": message for i, message in enumerate(messages)}
        self.sent |= new
        return list(new)

    def pull_messages(self, ids: list[str]) -> list[Any]:
        return [self._reply(i, self.sent[i]) for i in ids]

    def _reply(self, i: str, message: Any) -> Any:
        node, letter = message
        body = rosters.signed(self.roster, self.identities[node], letter, b"fine")
        content = {"sordino": {"bytes": SimpleNamespace(data=body)}}
        metadata = SimpleNamespace(reply_to_message_id=i)
        return SimpleNamespace(metadata=metadata, has_error=lambda: False, content=content)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_post, "PAUSE", 0.01)
    monkeypatch.setattr(flower_post, "_message", lambda node, letter, timeout: (node, letter))  # Flower's needs a run


def test_letters_wait_while_no_node_is_online() -> None:
    roster, identities = roster_of(2)
    grid = Grid([[], [], [], [0, 1], [0, 1], [1]], identities, roster)
    post = flower_post.FlowerPost(grid, roster, timeout=5.0)  # type: ignore[arg-type]
    replies = post.exchange({"site-1": b"letter", "site-2": b"letter"})
    assert replies.answered == {"site-1": b"fine", "site-2": b"fine"}
    assert grid.looks == 5  # three in vain, one that found nodes, one to learn which site is where
    post.exchange({"site-1": b"another"})
    assert grid.looks == 6  # one node is enough: a site that is away does not hold up the others


def test_a_server_that_stays_cut_off_goes_on_after_the_time_for_answers() -> None:
    roster, identities = roster_of(2)
    grid = Grid(iter(lambda: [], None), identities, roster)
    replies = flower_post.FlowerPost(grid, roster, timeout=0.1).exchange({"site-1": b"letter"})  # type: ignore[arg-type]
    assert replies.silent == ["site-1"] and grid.looks > 2 and not grid.sent
