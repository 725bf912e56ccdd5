"""Sordino and its peers, one process at a time, in turns: one table.

    python benchmarks/side_by_side.py --peers-python PEERS/bin/python --passes 3 --only W1,W2

Waits for a quiet machine before each process, appends every JSON line to `--out`, and prints medians over passes.
`--table FILE` prints the table of an earlier results file and runs nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import TICKS

HERE = Path(__file__).parent
OURS = {
    "W1": ["--method", "dp-sgd", "--beside", "none"],
    "W2": ["--method", "dp-fedavg", "--beside", "none"],
}
PEERS = {
    "W1": ["flower", "pfl", "opacus", "torch", "limit", "limit-wide"],
    "W2": ["flower", "pfl", "torch", "limit", "limit-wide"],
}
NAMES = {
    "sordino": "Sordino, private",
    "sordino plain": "Sordino, not private",
    "W1 flower": "Flower + Opacus",
    "W2 flower": "Flower, server-side clipping",
    "W1 pfl": "pfl + Opacus",
    "W2 pfl": "pfl, central Gaussian",
    "opacus": "Opacus, bare loop",
    "W1 torch": "torch loop, not private",
    "W2 torch": "torch loop, clipped and noised",
    "limit": "forward + backward alone",
    "limit-wide": "forward + backward alone, 600 records at a time",
}
ORDER = ("sordino", "sordino plain", "flower", "pfl", "opacus", "torch", "limit", "limit-wide")
Line = dict[str, Any]


def wait_for_quiet(seconds: float) -> None:
    """Until the whole machine uses less than 0.15 of a core for a second, or the patience is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = _busy()
        time.sleep(1.0)
        if _busy() - before < 0.15:
            return


def _busy() -> float:
    v = [int(i) for i in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (sum(v) - v[3] - v[4]) / TICKS


def run(command: list[str], limit: float) -> Line:
    start = time.monotonic()
    env = os.environ | {"PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit)
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"what"')]
        found: Line = json.loads(lines[-1]) if lines else {"failed": (done.stderr or done.stdout)[-800:]}
    except subprocess.TimeoutExpired:
        found = {"failed": f"no answer within {limit:.0f} s"}
    return found | {"command": " ".join(command[1:]), "wall_s": round(time.monotonic() - start, 1)}


def measure(args: argparse.Namespace) -> list[Line]:
    lines: list[Line] = []
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for number in range(args.passes):
        for workload in args.only.split(","):
            common = ["--workload", workload, "--rounds", str(args.rounds), "--seconds", str(args.seconds)]
            ours = [sys.executable, str(HERE / "rounds.py"), *common, *OURS[workload]]
            peers = [[args.peers_python, str(HERE / "peers.py"), *common, "--peer", p] for p in PEERS[workload]]
            for command in [ours, *peers] if args.peers_python else [ours]:
                wait_for_quiet(args.wait)
                line = run(command, args.seconds + 120) | {"pass": number}
                lines.append(line)
                with args.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                shown = line.get("failed") or f"{line['s_per_round']} s a round, noisy: {line['noisy']}"
                print(f"{line['wall_s']:>6} s  {workload} {command[-1]}: {shown}", file=sys.stderr, flush=True)
    return lines


def table(lines: list[Line], workload: str) -> str:
    """Medians over passes; a noisy line counts only where there is no other."""
    rows: dict[str, list[Line]] = defaultdict(list)
    ratios = []
    for line in lines:
        if line.get("workload") == workload:
            rows[line["what"]].append(line)
            if "beside" in line:
                rows["sordino plain"].append(line["beside"])
                ratios.append(line["ratio"])
    if not rows["sordino"]:
        return ""
    kept = {k: [line for line in v if not line["noisy"]] or v for k, v in rows.items()}

    def median(name: str, field: str) -> float:
        return statistics.median(line[field] for line in kept[name])

    base = median("sordino", "s_per_round")
    out = [
        f"\n{workload}\n",
        "| what | s a round | records/s | CPU s | peak MB | times ours | passes |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for name in sorted(kept, key=ORDER.index):
        seconds = median(name, "s_per_round")
        memory = f"{median(name, 'peak_mb'):.0f}" if all("peak_mb" in line for line in kept[name]) else ""
        noisy = ", noisy" if any(line["noisy"] for line in kept[name]) else ""
        label = NAMES.get(name) or NAMES[f"{workload} {name}"]
        out.append(
            f"| {label} | {seconds:.3f} | {median(name, 'records_per_s'):.0f} | {median(name, 'cpu_s'):.2f} "
            f"| {memory} | {seconds / base:.2f} | {len(kept[name])} of {len(rows[name])}{noisy} |"
        )
    out.append(f"\nPrivate / not private, round by round: {statistics.median(ratios):.2f}.")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers-python", help="of the peers' environment; without it only Sordino is timed")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--only", default="W1,W2")
    parser.add_argument("--rounds", type=int, default=8, help="quiet rounds of each")
    parser.add_argument("--seconds", type=float, default=12.0, help="for each, at most (start-up not counted)")
    parser.add_argument("--wait", type=float, default=30.0, help="patience for a quiet machine before each, s")
    parser.add_argument("--out", type=Path, default=Path("runs/side_by_side.jsonl"), help="results, appended")
    parser.add_argument("--table", type=Path, help="print the table of these results, run nothing")
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.table.read_text().splitlines()] if args.table else measure(args)
    for workload in args.only.split(","):
        print(table(lines, workload))


if __name__ == "__main__":
    main()
