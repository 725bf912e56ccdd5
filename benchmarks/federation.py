"""What Sordino adds to an exchange of a real federation, beside the clients' work and Flower's empty exchange.

    python benchmarks/federation.py --sites 3 --rounds 12 --sums 5 --json federation-3.json
    python benchmarks/federation.py --sites 10 --rounds 6 --sums 3 --json federation-10.json
    python benchmarks/federation.py --table federation-3.json federation-10.json

Starts a federation as `sordino deploy init` and `up` do (SuperLink, gate, SuperNodes, `sordino site`), and runs jobs in
it: direct ones, and ones behind a secure sum, which makes four exchanges a round. Before each exchange of a job the
same server makes an empty one, with the same nodes, the same messages and the same polling, which the nodes answer
without their daemon. So a neighbour on the machine hits both alike.

work     seconds inside SiteJob.answer, the clients' own training, measured in the daemon of the site that answered last
site     what this daemon does besides: checks, ledger, answers on disk, masks
wait     until the next multiple of `answer_seconds` of the policy (0.5 s)
server   from the end of an exchange to the next: merge, ledger, records, epsilon
ours     an exchange of a job, with the server's part after it
timed    (site + wait + server) / empty, by medians: what was timed directly, which neighbours disturb little
added    (ours - work - empty) / empty, by medians: everything, as the difference of two times that both vary

The public test records are evaluated after the last round only. It takes about ten minutes with three sites.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common import _cpu, _field, tree

from sordino.deploy import follow, processes, start
from sordino.deploy.create import create
from sordino.deploy.folder import Folder
from sordino.spec.toml import to_toml

HERE = Path(__file__).parent
COMMON = {"method": "dp-sgd", "epsilon": 8.0, "seed": 1}
WORKLOADS: dict[str, dict[str, Any]] = {
    "breast-cancer": {"dataset": "breast-cancer", "normalise": "none"},
    "mnist": {"dataset": "mnist", "model": "cnn", "batch_size": 60, "local_epochs": 1.0},  # the clients of W1
}
ONE_STEP = {"mnist": {"local_steps": 1, "batch_rate": 0.1}}  # behind a secure sum dp-sgd takes one step a round
RECORDS = {"mnist": 600}  # of each site; the whole share of breast-cancer
ALLOWED = {"epsilon_per_job": 1e6, "epsilon_total": 1e9, "delta_total": 0.5, "channels": ("direct", "secure-sum")}
STEPS = ("keys", "shares", "masked", "unmask")
LONGEST = 1800.0  # seconds of one job


def toml(keys: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {to_toml(value)}\n" for name, value in keys.items())


# --- the federation


def made(place: Path, workload: str, sites: int, port: int) -> Folder:
    """Return a federation that allows all jobs of this benchmark, with the app that takes times."""
    keys = COMMON | WORKLOADS[workload] | {"clients": sites}
    (place / "spec.toml").write_text(toml(keys))
    folder = create(place / "spec.toml", place / "f", sites, port=port)
    allowed = ALLOWED | ({"records": RECORDS[workload]} if workload in RECORDS else {})
    for site in folder.roster().sites:
        policy = folder.site(site.name) / "policy.toml"
        kept = [line for line in policy.read_text().splitlines() if line.split(" = ")[0] not in allowed]
        policy.write_text("\n".join(kept) + "\n" + toml(allowed))
    for file in (HERE / "federation_app").glob("*.py"):
        shutil.copy(file, folder.app / "sordino_app")
    about = folder.app / "pyproject.toml"
    text = about.read_text()
    for side in ("server", "client"):
        text = text.replace(f"sordino_app.{side}:app", f"sordino_app.timed_{side}:app")
    about.write_text(text)
    return folder


def daemon(site: Path, number: int, data: str, path: Path) -> list[str]:
    """Return the command of a site's daemon, with timers around it."""
    plain = start.site_command(site, number, data, path)
    return [sys.executable, str(HERE / "federation_site.py"), str(site / "times.jsonl"), *plain[1:]]


def ran(folder: Folder, name: str, keys: Mapping[str, Any], timeout: float) -> None:
    """Run a job to its end; stop the benchmark if it fails."""
    folder.spec.write_text(toml(keys))
    end = time.monotonic() + LONGEST

    def say(text: str) -> None:
        if time.monotonic() > end:
            raise SystemExit(f"{name} takes too long: {text}")

    job, path = follow.begin(folder, name=name, timeout=timeout)
    state = follow.follow(folder, job, path, say)
    if state != "finished:completed":
        raise SystemExit(f"{name} {state}: {follow.reason(folder) or follow.last_words(folder, job)}")


# --- what the processes use


def group(name: str) -> str:
    return "node" if name.endswith(" node") else "daemon" if name.startswith("site-") else name


def used(folder: Folder) -> dict[str, Any]:
    """Return the CPU seconds and megabytes of the processes by kind, and the bytes of the SuperLink's database."""
    seconds: dict[str, float] = {}
    memory: dict[str, list[float]] = {}
    for record in processes.read(folder.state):
        pids = tree(record.pid)  # a node starts a process that starts one for every message
        kind = group(record.name)
        seconds[kind] = seconds.get(kind, 0.0) + sum(map(_cpu, pids))
        memory.setdefault(kind, []).append(sum(_field(p, "smaps_rollup", "Pss:") for p in pids))
    database = sum(f.stat().st_size for f in folder.state.glob("superlink.db*"))
    mean = {kind: round(statistics.fmean(values)) for kind, values in memory.items()}
    return {"cpu": seconds, "mb": mean, "database": database}


def idle(folder: Folder, seconds: float = 30.0) -> dict[str, float]:
    """Return the CPU seconds that a kind of process takes in a second per site while no job runs."""
    before, sites = used(folder), len(folder.roster().sites)
    time.sleep(seconds)
    after = used(folder)
    return {k: round((after["cpu"][k] - before["cpu"][k]) / seconds / sites, 5) for k in after["cpu"]}


def usage(before: dict[str, Any], after: dict[str, Any], events: list[dict[str, Any]], sites: int) -> dict[str, Any]:
    """Return what one message took: CPU seconds by kind of process, and bytes of the database."""
    messages = sites * sum(e["kind"] in ("ours", "empty") for e in events)
    cpu = {k: round((after["cpu"][k] - before["cpu"].get(k, 0.0)) / messages, 3) for k in after["cpu"]}
    stored = (after["database"] - before["database"]) // messages
    return {"messages": messages, "cpu_per_message": cpu, "mb": after["mb"], "database_bytes_per_message": stored}


# --- the times


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def exchanges(folder: Folder, name: str) -> list[dict[str, Any]]:
    """Return the exchanges of a job's rounds: what each took, the empty one before it, and what its sites did."""
    events = lines(folder.runs / f"{name}.times.jsonl")
    sites = [lines(folder.site(site.name) / "times.jsonl") for site in folder.roster().sites]
    out = []
    for before, event, after in zip(events, events[1:], events[2:], strict=False):
        if event["kind"] != "ours" or event["round"] is None or after["kind"] == "end":  # the end is no round's
            continue
        end = event["start"] + event["seconds"]
        answers = [a for site in sites for a in site if event["start"] <= a["start"] <= end]
        last = {"work": 0.0} | max(answers, key=lambda a: a["start"] + a["body"] + a["wait"])
        out.append(
            {"what": event["what"], "round": event["round"], "missing": event["missing"], "answers": len(answers)}
            | {k: event[k] // len(answers) for k in ("bytes_down", "bytes_up")}
            | {"empty": before["seconds"], "exchange": event["seconds"], "server": after["start"] - end}
            | {"work": last["work"], "site": last["body"] - last["work"], "wait": last["wait"]}
            | {"mean_work": statistics.fmean(a.get("work", 0.0) for a in answers)}
        )
    return out


def opening(folder: Folder, name: str) -> dict[str, float]:
    """Return the seconds of the two exchanges before the first round."""
    events = [e for e in lines(folder.runs / f"{name}.times.jsonl") if e["kind"] == "ours" and e["round"] is None]
    return {e["what"]: round(e["seconds"], 2) for e in events}


def measured(workload: str, asked: argparse.Namespace, place: Path, out: list[dict[str, Any]]) -> None:
    """Start a federation, run its jobs in turns, end it, and add what was measured."""
    folder = made(place, workload, asked.sites, asked.port)
    keys = COMMON | WORKLOADS[workload] | {"clients": asked.sites}
    direct = keys | {"rounds": asked.rounds, "evaluate_every": asked.rounds}
    summed = keys | {"rounds": asked.sums, "evaluate_every": asked.sums, "channel": "secure-sum"}
    if workload in ONE_STEP:
        summed = {k: v for k, v in summed.items() if k not in ("local_epochs", "batch_size")} | ONE_STEP[workload]
    began = time.monotonic()
    try:
        start.up(folder, say=lambda text: print(f"  {text}", flush=True), command=daemon)
        up, resting = time.monotonic() - began, idle(folder)
        for turn in range(asked.turns):
            for channel, job in (("direct", direct), ("secure-sum", summed)):
                name = f"{channel}-{turn}"
                before = used(folder)
                ran(folder, name, job, asked.timeout)
                events = lines(folder.runs / f"{name}.times.jsonl")
                entry = {
                    "workload": workload,
                    "sites": asked.sites,
                    "channel": channel,
                    "up": round(up, 1),
                    "idle": resting,
                }
                entry |= {"usage": usage(before, used(folder), events, asked.sites)}
                out.append(entry | {"opening": opening(folder, name), "exchanges": exchanges(folder, name)})
                print(f"{workload}, {name}: {summary(out[-1:])}", flush=True)
    finally:
        start.down(folder, say=lambda text: None)
        print(f"still running: {len(processes.family(r.mark for r in processes.read(folder.state)))}", flush=True)


# --- the table


def summary(jobs: list[dict[str, Any]], what: str | None = None) -> dict[str, float]:
    """Return the medians over the exchanges of some jobs (of one step), and the share that is added."""
    chosen = [e for job in jobs for e in job["exchanges"] if what in (None, e["what"])]

    def median(value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(map(value, chosen))

    out = {k: median(lambda e, k=k: e[k]) for k in ("empty", "exchange", "work", "site", "wait", "server")}
    out["ours"] = median(lambda e: e["exchange"] + e["server"])
    out["added"] = (out["ours"] - out["work"] - out["empty"]) / out["empty"]
    out["timed"] = median(lambda e: e["site"] + e["wait"] + e["server"]) / out["empty"]
    total = [sum(e[k] for e in chosen) for k in ("exchange", "server", "work", "empty")]
    out["added, by means"] = (total[0] + total[1] - total[2] - total[3]) / total[3]
    out |= {"exchanges": len(chosen), "missing": sum(e["missing"] for e in chosen)}
    return {k: round(v, 3) for k, v in out.items()}


def table(jobs: list[dict[str, Any]]) -> None:
    """Print a line for each workload, number of sites and channel, and for each step of a secure sum."""
    names = ("exchanges", "empty", "ours", "work", "site", "wait", "server", "timed", "added", "added, by means")
    print("| workload | sites | exchange | " + " | ".join(names) + " |")
    print("| --- | ---: | --- |" + " ---: |" * len(names))
    for key in dict.fromkeys((j["workload"], j["sites"], j["channel"]) for j in jobs):
        chosen = [j for j in jobs if (j["workload"], j["sites"], j["channel"]) == key]
        seen = {e["what"] for job in chosen for e in job["exchanges"]}
        steps = (None,) if key[2] == "direct" else (None, *(step for step in STEPS if step in seen))
        for step in steps:
            row = summary(chosen, step)
            cells = [
                f"{row[n]:.0%}" if n.startswith(("added", "timed")) else f"{row[n]:.{0 if n == 'exchanges' else 2}f}"
                for n in names
            ]
            what = key[2] if step is None else f"- {step}"
            print(f"| {key[0]} | {key[1]} | {what} | " + " | ".join(cells) + " |")


def averages(jobs: list[dict[str, Any]]) -> None:
    """Print by number of sites the mean of what is added, over all exchanges, with its standard error."""
    for sites in dict.fromkeys(job["sites"] for job in jobs):
        chosen = [e for job in jobs if job["sites"] == sites for e in job["exchanges"]]
        added = [e["exchange"] + e["server"] - e["work"] - e["empty"] for e in chosen]
        error = statistics.stdev(added) / len(added) ** 0.5 if len(added) > 1 else float("nan")
        empty, mean = [e["empty"] for e in chosen], statistics.fmean(added)
        timed = statistics.median(e["site"] + e["wait"] + e["server"] for e in chosen)
        print(
            f"{sites} sites, {len(added)} exchanges: added {mean:.2f} s, standard error {error:.2f}; "
            f"timed {timed:.2f} s; "
            f"empty {statistics.fmean(empty):.2f} s on average, {min(empty):.2f} to {max(empty):.2f}"
        )


def kept(path: Path, jobs: list[dict[str, Any]]) -> None:
    """Write what was measured, with the command and the load of the machine."""
    rounded = json.loads(json.dumps(jobs), parse_float=lambda text: round(float(text), 4))
    command = "python benchmarks/federation.py " + " ".join(sys.argv[1:])
    load = [round(v, 2) for v in os.getloadavg()]
    path.write_text(json.dumps({"command": command, "load": load, "jobs": rounded}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=3, help="real processes: 2 to 10")
    parser.add_argument("--rounds", type=int, default=12, help="of a direct job")
    parser.add_argument("--sums", type=int, default=5, help="rounds of a job behind a secure sum, four exchanges each")
    parser.add_argument("--turns", type=int, default=1, help="how often the two jobs take turns")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--port", type=int, default=21000)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds to wait for one exchange")
    parser.add_argument("--json", type=Path, help="file for the measurements")
    parser.add_argument("--table", type=Path, nargs="*", help="print the table of earlier measurements, and end")
    asked = parser.parse_args()
    if asked.table:
        earlier = [job for path in asked.table for job in json.loads(path.read_text())["jobs"]]
        table(earlier)
        averages(earlier)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # what was started is stopped
    jobs: list[dict[str, Any]] = []
    for workload in asked.workloads.split(","):
        place = Path(tempfile.mkdtemp(prefix="sordino-"))
        place.chmod(0o755)  # another user must be able to reach the nodes
        try:
            measured(workload, asked, place, jobs)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            if asked.json:
                kept(asked.json, jobs)
    table(jobs)
    averages(jobs)


if __name__ == "__main__":
    main()
