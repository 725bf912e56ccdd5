"""A long run on real sites whose processes are killed at random: what is lost, and whether all ledgers agree.

    python benchmarks/soak.py --rounds 100 --kills 12 --out docs/results/soak.json

Real SuperLink, gate, SuperNodes and `sordino site` on loopback, with TLS. After a random number of rounds a random part
is killed (SIGKILL, with its children), and what is dead is started again, as a supervisor would: a site's node or
daemon, the SuperLink, the gate, or the server's own process, after which the run is resumed. At the end the rounds in
the records, the participations that the server counts and those in every site's own ledger are compared. 100 rounds
take about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sordino.deploy import follow, processes, start, status
from sordino.deploy.create import create
from sordino.deploy.folder import Folder
from sordino.deploy.site_account import read_ledger
from sordino.spec.toml import to_toml

RUN = "soak"
SPEC = {"dataset": "breast-cancer", "method": "dp-sgd", "mode": "secure", "epsilon": 8.0}
TIMEOUT = 240.0  # seconds for the answers of one exchange
PATIENCE = 400.0  # seconds in which a round must end
STEP = (4, 10)  # rounds between two kills


def made(place: Path, sites: int, rounds: int, port: int) -> Folder:
    """Return a new federation whose policies allow the run."""
    keys = SPEC | {"clients": sites, "rounds": rounds}
    (place / "spec.toml").write_text("".join(f"{k} = {to_toml(v)}\n" for k, v in keys.items()))
    return create(place / "spec.toml", place / "federation", sites, port=port)


def done(folder: Folder) -> int:
    """Return the number of rounds that have ended."""
    progress = status.read_progress(folder.runs / RUN)
    return 0 if progress is None else progress.done or 0


def ended(folder: Folder) -> bool:
    """Return whether the run has its result."""
    return (folder.runs / RUN / "public" / "result.json").exists()


def wait_for(folder: Folder, rounds: int) -> None:
    """Wait until so many rounds have ended; raise TimeoutError if a round takes too long."""
    before, since = -1, time.monotonic()
    while (now := done(folder)) < rounds and not ended(folder):
        if now != before:
            before, since = now, time.monotonic()
        if (why := follow.reason(folder)) is not None:
            raise RuntimeError(f"the job stopped: {why}")
        if time.monotonic() - since > PATIENCE:
            raise TimeoutError(f"round {now + 1} does not end")
        time.sleep(0.3)


def kill(folder: Folder, name: str) -> None:
    """Kill a part and its children at once."""
    record = next(r for r in processes.read(folder.state) if r.name == name)
    for child in [record, *processes.family([record.mark])]:
        if processes.alive(child):
            os.kill(child.pid, signal.SIGKILL)
    while processes.alive(record):
        time.sleep(0.05)


def strike(folder: Folder, victim: str) -> dict[str, Any]:
    """Kill one part, start what is dead again, and resume the run if it was the server's own process."""
    began, at = time.monotonic(), done(folder)
    kill(folder, victim)
    start.up(folder, say=lambda line: None)
    if victim == "superexec":
        follow.begin(folder, resume=RUN, timeout=TIMEOUT)
    seconds = round(time.monotonic() - began, 1)
    print(f"round {at}: killed {victim}; all was up again after {seconds} s", flush=True)
    return {"after round": at, "killed": victim, "up again after": seconds}


def counts(folder: Folder) -> dict[str, dict[str, int]]:
    """Return by site the rounds that its own ledger has, and those that the server counts."""
    content = json.loads((folder.runs / RUN / "private" / "federation.json").read_text())
    out = {}
    for site in content["sites"]:
        with read_ledger(folder.site(site["name"]) / "state") as ledger:
            rows = sum(content["job"].startswith(e.job) for e in ledger.chain.select("kind = 'round'"))
        out[site["name"]] = {"its own ledger": rows, "the server": site["participations"]}
    return out


def summary(folder: Folder, events: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return what the run left behind."""
    public = folder.runs / RUN / "public"
    records = [json.loads(line) for line in (public / "records.jsonl").read_text().splitlines()]
    result = json.loads((public / "result.json").read_text())
    return {
        "rounds in the records": len(records),
        "each once and in order": [r["round"] for r in records] == list(range(1, len(records) + 1)),
        "lost rounds": [{"round": r["round"], "why": r["lost"]} for r in records if r.get("lost")],
        "participations": counts(folder),
        "guarantee": result["guarantee"]["sentence"],
        "accuracy": result.get("accuracy"),
        "seconds": round(seconds),
        "kills": events,
    }


def verdict(found: dict[str, Any], rounds: int) -> list[str]:
    """Return what is wrong; an empty list if nothing is.

    In secure mode a round in which the server's own process dies is charged and not repeated: the run has one less.
    """
    wrong = []
    least = rounds - sum(kill["killed"] == "superexec" for kill in found["kills"])
    if not least <= found["rounds in the records"] <= rounds or not found["each once and in order"]:
        wrong.append("rounds are missing or doubled in the records")
    for name, both in found["participations"].items():
        if both["its own ledger"] < both["the server"]:
            wrong.append(f"{name} has paid for fewer rounds than the server counts")
        if both["the server"] < rounds - len(found["kills"]):
            wrong.append(f"{name} missed {rounds - both['the server']} rounds, more than there were kills")
    return wrong


def main() -> int:
    """Run the soak; return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description="Kill parts of a real federation at random during a run.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=18600)
    parser.add_argument("--out", type=Path, help="write the result here, as JSON")
    chosen = parser.parse_args()
    dice, place, events = random.Random(chosen.seed), Path(tempfile.mkdtemp(prefix="soak-")), list[dict[str, Any]]()
    place.chmod(0o755)
    folder = made(place, chosen.sites, chosen.rounds, chosen.port)
    names = [site.name for site in folder.roster().sites]
    victims = [*names, *(f"{name} node" for name in names), "superlink", "gate", "superexec"]
    began = time.monotonic()
    try:
        start.up(folder, say=print)
        follow.begin(folder, name=RUN, timeout=TIMEOUT)
        order = dice.sample(victims, len(victims)) + dice.choices(victims, k=max(0, chosen.kills - len(victims)))
        for victim in order[: chosen.kills]:
            at = done(folder) + dice.randint(*STEP)
            if at >= chosen.rounds:
                break
            wait_for(folder, at)
            time.sleep(4 * dice.random())  # anywhere in a round
            events.append(strike(folder, victim))
        wait_for(folder, chosen.rounds)
        while not ended(folder):
            time.sleep(0.3)
        found = summary(folder, events, time.monotonic() - began)
    finally:
        start.down(folder, say=lambda line: None)
    shutil.rmtree(place)
    wrong = verdict(found, chosen.rounds)
    text = json.dumps({"command": " ".join(["python", *sys.argv])} | found | {"wrong": wrong}, indent=1)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n", encoding="utf-8")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
