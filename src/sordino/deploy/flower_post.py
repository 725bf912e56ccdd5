"""The post over Flower: letters as messages of type "train", answers by polling until a deadline.

Flower's own loop is not used: it knows no deadline per site, cannot say who failed, and starts at round 1 again. A node
is a site if its answer is signed by the site; which node that is, is found out by the first answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from sordino.core.errors import RunError
from sordino.deploy import roster as rosters
from sordino.deploy.folder import Roster
from sordino.federations.flower import Replies

RECORD, ARRAY, KIND = (
    "sordino",
    "bytes",
    "sordino.bytes",
)  # names in a message, agreed with the app (template/client.py)
EVERY = 0.2  # seconds between two looks for answers
PAUSE = 1.0  # seconds between two looks for nodes that are online
WAVE = 64  # messages in flight at a time


class FlowerPost:
    """Carries letters through Flower's grid."""

    def __init__(self, grid: Grid, roster: Roster, timeout: float) -> None:
        self._grid, self._roster, self._timeout = grid, roster, timeout
        self._nodes: dict[str, int] = {}  # by site

    def exchange(self, requests: Mapping[str, bytes]) -> Replies:
        """Send a letter to each of these sites, and wait for the answers until the deadline.

        While no node at all is online, it is rather the server that is cut off. Then nothing is sent for as long as one
        would wait for answers, since every letter would fail at once, and with it round after round.
        """
        end = time.monotonic() + self._timeout
        while not self._online() and time.monotonic() < end:
            time.sleep(PAUSE)
        out = Replies()
        known = {name: self._nodes[name] for name in requests if name in self._nodes}
        unknown = [name for name in requests if name not in known]
        sent = [(node, name, requests[name]) for name, node in known.items()]
        if unknown:  # the same letter for all: whoever signs the answer is the site
            letter = requests[unknown[0]]
            taken = set(self._nodes.values())
            sent += [(node, "", letter) for node in sorted(self._online()) if node not in taken]
        for first in range(0, len(sent), WAVE):
            self._wave(sent[first : first + WAVE], unknown, out)
        out.silent = [name for name in requests if name not in out.answered and name not in out.failed]
        return out

    def _wave(self, sent: list[tuple[int, str, bytes]], unknown: list[str], out: Replies) -> None:
        messages = [_message(node, letter, self._timeout) for node, _, letter in sent]
        ids = self._pushed(messages)
        waiting = {i: (node, name, letter) for i, (node, name, letter) in zip(ids, sent, strict=True) if i}
        end = time.monotonic() + self._timeout
        while waiting and time.monotonic() < end:
            for reply in self._pulled(list(waiting)):
                entry = waiting.pop(reply.metadata.reply_to_message_id, None)  # a duplicate finds no entry
                if entry is not None:
                    self._take(reply, *entry, unknown, out)
            if waiting:
                time.sleep(EVERY)

    def _take(self, reply: Any, node: int, name: str, letter: bytes, unknown: list[str], out: Replies) -> None:
        """Note one answer: a letter that its site has signed, or why there is none."""
        if reply.has_error():
            if name:
                out.failed[name] = f"Flower reports error {int(reply.error.code)}"
            return
        try:
            data = bytes(reply.content[RECORD][ARRAY].data)
        except (KeyError, TypeError, AttributeError):
            if name:
                out.failed[name] = "the answer is no letter"
            return
        for candidate in [name] if name else unknown:
            with contextlib.suppress(RunError):
                body = rosters.opened(self._roster, candidate, letter, data)
                out.answered[candidate] = body
                self._nodes[candidate] = node
                return
        if name:
            out.failed[name] = "the answer is not signed by the site"

    # --- the grid, which may be out of reach for a while

    def _online(self) -> list[int]:
        with contextlib.suppress(Exception):
            return [int(i) for i in self._grid.get_node_ids()]
        return []

    def _pushed(self, messages: list[Any]) -> list[str]:
        end = time.monotonic() + self._timeout
        while True:
            try:
                return [str(i) for i in self._grid.push_messages(messages)]
            except Exception as error:
                if time.monotonic() > end:
                    raise RunError("Flower's SuperLink cannot be reached. Resume the run when it is back.") from error
                time.sleep(1.0)

    def _pulled(self, ids: list[str]) -> list[Any]:
        try:
            return list(self._grid.pull_messages(ids))
        except Exception:  # the SuperLink is being restarted; the deadline ends the wait
            time.sleep(1.0)
            return []


def _message(node: int, letter: bytes, timeout: float) -> Any:
    array = Array(dtype="uint8", shape=(len(letter),), stype=KIND, data=letter)
    content = RecordDict({RECORD: ArrayRecord({ARRAY: array})})
    return Message(content, dst_node_id=node, message_type="train", ttl=2 * timeout + 60)
