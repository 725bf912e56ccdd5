"""Following a job: its file says how it goes, and the SuperLink is asked as seldom as that allows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sordino.deploy import follow
from sordino.deploy.folder import Folder


@pytest.mark.parametrize("ends", ["completed", "failed", "killed"])
def test_a_job_of_two_minutes_asks_the_superlink_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    folder, run, now, asked = Folder(tmp_path), tmp_path / "run", [100.0], []
    (run / "private").mkdir(parents=True)
    folder.runs.mkdir(parents=True)

    def sleep(seconds: float) -> None:
        now[0] += seconds
        passed = now[0] - 100.0
        done = min(12, int(passed / 10))
        if ends != "completed" and passed > 115:
            done = 11
            if ends == "failed":
                (folder.runs / follow.FAILED).write_text(json.dumps({"error": "no site answered"}))
        file = run / "private" / "federation.json"
        file.write_text(json.dumps({"rounds": 12, "done": done, "sites": []}))

    def state(folder: Folder, job: str) -> str:
        asked.append(now[0])
        return f"finished:{ends}" if now[0] > 220 else "running"

    clock: Any = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(follow, "time", clock)
    monkeypatch.setattr(follow.flower, "run_state", state)
    assert follow.follow(folder, "1", run, lambda text: None) == f"finished:{ends}"
    assert len(asked) <= 10  # of 40 every three seconds
    assert now[0] <= 220 + (follow.RARELY if ends == "killed" else follow.ASKING) + 1
