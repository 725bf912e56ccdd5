"""The server of a job, which makes an empty exchange before each of its own and writes down what both take."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sordino.deploy import flower_post, server
from sordino.federations import letters
from sordino.federations.flower import Replies

EMPTY = b"empty"
app = ServerApp()


class TimedPost(flower_post.FlowerPost):
    """Sends letters as FlowerPost does; times are written to the file of the class."""

    file: Path

    def exchange(self, requests: Mapping[str, bytes]) -> Replies:
        """Make an empty exchange with the same sites, then the one that is asked for."""
        header = letters.unpacked(next(iter(requests.values())))[0] if requests else {}
        what = str(header.get("step") or header.get("verb"))
        if "round" in header:
            self._empty([name for name in requests if name in self._nodes])
        start = time.monotonic()
        replies = super().exchange(requests)
        seconds = time.monotonic() - start
        self._note(
            kind="ours", what=what, round=header.get("round"), start=start, seconds=seconds,
            missing=len(replies.silent) + len(replies.failed),
            bytes_down=sum(map(len, requests.values())), bytes_up=sum(map(len, replies.answered.values())),
        )  # fmt: skip
        return replies

    def _empty(self, names: list[str]) -> None:
        """Time a request that every node answers by itself, sent and polled for by the same code."""
        out, start = Replies(), time.monotonic()
        self._wave([(self._nodes[name], name, EMPTY) for name in names], [], out)
        seconds = time.monotonic() - start
        self._note(kind="empty", start=start, seconds=seconds, missing=len(names) - len(out.failed))

    def _note(self, **entry: Any) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the job that spec.toml beside this file describes, with times."""
    out = Path(str(context.run_config["out"]))
    TimedPost.file = out / f"{context.run_config['name']}.times.jsonl"
    server.FlowerPost = TimedPost  # type: ignore[misc]
    try:
        server.main(grid, context, Path(__file__).parent)
    finally:
        with TimedPost.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": "end", "start": time.monotonic()}) + "\n")
