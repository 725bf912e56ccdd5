"""The post over Flower: letters as messages of type "train", answers by polling until a deadline.

Flower's own loop is not used: it knows no deadline per site, cannot say who failed, and starts at round 1 again. A node
is a site if its answer is signed by the site; which node that is, is found out by the first answer.

A message that was lost on its way is sent again for a while, if its site was there just before, and one without an
answer is sent again once, after half the time: a site repeats an answer at no cost, so that a node or a daemon that is
restarted costs time, and no round.
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
AGAIN = 5.0  # seconds after which a letter that was lost is sent again
GRACE = 120.0  # seconds for which this is tried; a killed node can join again after a minute
UNREACHABLE = b'{"error": '  # how the app answers if the daemon of its site is not there (template/client.py)
RETRY = 1.0  # seconds after which a SuperLink that was out of reach is asked again


Entry = tuple[int, str, bytes]  # node, site ("" if not known yet), letter


class Lost:
    """Letters of one exchange that were lost on their way, and are sent again for a while.

    Args:
        there: the sites that are worth the wait: those that answered when they were asked last.
    """

    def __init__(self, there: set[str]) -> None:
        self._there, self._until = there, dict[str, float]()
        self.entries: list[tuple[float, Entry]] = []  # when to send again, and what

    def again(self, entry: Entry) -> bool:
        """Note that a letter was lost; return whether it will be sent again."""
        now, name = time.monotonic(), entry[1]
        if name not in self._there or now > self._until.setdefault(name, now + GRACE):
            return False
        self.entries.append((now + AGAIN, entry))
        return True

    def due(self) -> list[Entry]:
        """Return the letters that are to be sent again now."""
        now = time.monotonic()
        out = [entry for at, entry in self.entries if at <= now]
        self.entries = [(at, entry) for at, entry in self.entries if at > now]
        return out


class FlowerPost:
    """Carries letters through Flower's grid."""

    def __init__(self, grid: Grid, roster: Roster, timeout: float) -> None:
        self._grid, self._roster, self._timeout = grid, roster, timeout
        self._nodes: dict[str, int] = {}  # by site
        self._there: set[str] = set()  # sites that answered when they were asked last

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
        self._there = (self._there - set(requests)) | set(out.answered)
        return out

    def _wave(self, sent: list[Entry], unknown: list[str], out: Replies) -> None:
        waiting, lost = self._sent(sent), Lost(self._there)
        end, middle = time.monotonic() + self._timeout, time.monotonic() + self._timeout / 2
        while (waiting or lost.entries) and time.monotonic() < end:
            if due := lost.due():
                waiting |= self._sent(due)
            if time.monotonic() > middle:  # Flower delivers at most once: a message may be lost without a word
                middle = end
                waiting |= self._sent([entry for entry in waiting.values() if entry[1] in self._there])
            for reply in self._pulled(list(waiting)):
                entry = waiting.pop(reply.metadata.reply_to_message_id, None)  # a duplicate finds no entry
                if entry is not None and not (_is_lost(reply) and lost.again(entry)):
                    self._take(reply, *entry, unknown, out)
                    waiting = {i: other for i, other in waiting.items() if other[1] != entry[1] or not entry[1]}
            if waiting or lost.entries:
                time.sleep(EVERY)

    def _sent(self, entries: list[Entry]) -> dict[str, Entry]:
        """Send letters; return the entries by the ids of their messages."""
        ids = self._pushed([_message(node, letter, self._timeout) for node, _, letter in entries])
        return {i: entry for i, entry in zip(ids, entries, strict=True) if i}

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
                time.sleep(RETRY)

    def _pulled(self, ids: list[str]) -> list[Any]:
        try:
            return list(self._grid.pull_messages(ids))
        except Exception:  # the SuperLink is being restarted; the deadline ends the wait
            time.sleep(RETRY)
            return []


def _is_lost(reply: Any) -> bool:
    """Return whether a reply says that the letter did not reach the daemon of its site, or its answer got lost."""
    if reply.has_error():
        return True
    try:
        return bytes(reply.content[RECORD][ARRAY].data).startswith(UNREACHABLE)
    except (KeyError, TypeError, AttributeError):
        return False


def _message(node: int, letter: bytes, timeout: float) -> Any:
    array = Array(dtype="uint8", shape=(len(letter),), stype=KIND, data=letter)
    content = RecordDict({RECORD: ArrayRecord({ARRAY: array})})
    return Message(content, dst_node_id=node, message_type="train", ttl=2 * timeout + 60)
