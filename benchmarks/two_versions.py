"""Rounds of two versions of Sordino in turns: does a change cost time?

    git worktree add ../before COMMIT
    python benchmarks/two_versions.py ../before . --workload W1 --pairs 14 --at-once 14

A pair is two processes, one of each version, on the same core with one thread. They take turns, one whole round each
(benchmarks/rounds.py of its own version), so that both meet the same machine. Where a process lies in memory moves its
speed by several per cent for as long as it lives, so that many short pairs say more than a long one. Prints CPU time of
a round, the ratio of every pair's medians, and the median of those with a bootstrap interval.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

METHODS = {"W1": "dp-sgd", "W2": "dp-fedavg"}


def serve(workload: str) -> None:
    """Run one round for every line that arrives, and answer with the CPU seconds it took."""
    import torch
    from common import WORKLOADS, data
    from rounds import endless, job

    from sordino.data.clients import ArrayClients

    torch.set_num_threads(1)
    load = WORKLOADS[workload]
    x, y = data()
    clients = ArrayClients(x, y, [load.records] * load.clients)
    keys: dict[str, Any] = {"client_sampling": "fixed", "client_rate": load.cohort / load.clients, "device": "cpu"}
    with tempfile.TemporaryDirectory() as out:
        rounds = endless(job(METHODS[workload], clients, batch_size=load.batch, **keys), str(Path(out) / "run"))
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.process_time()
            next(rounds)
            print(time.process_time() - start, flush=True)
        rounds.close()


def started(version: Path, workload: str, core: int) -> "subprocess.Popen[str]":
    paths = os.pathsep.join([str(version / "src"), str(version / "benchmarks"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # this very file, not that of the version, which has its own `rounds` and `common`
    code = f"import runpy; runpy.run_path({__file__!r}, run_name='two')['serve']({workload!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    if answer(process) != "ready":
        raise SystemExit(f"{version} does not start")
    return process


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def pair(versions: tuple[Path, Path], workload: str, rounds: int, warmup: int, core: int) -> tuple[float, float]:
    """Return the median CPU seconds of a round of either version."""
    both = [started(version, workload, core) for version in versions]
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(warmup + rounds):
        for at in (0, 1) if number % 2 else (1, 0):
            process = both[at]
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            seconds = float(answer(process))
            if number >= warmup:
                found[at].append(seconds)
    for process in both:
        process.communicate()
    return statistics.median(found[0]), statistics.median(found[1])


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[-100]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs=2, type=Path, help="folders with src/ and benchmarks/: before, after")
    parser.add_argument("--workload", default="W1", choices=sorted(METHODS))
    parser.add_argument("--rounds", type=int, default=20, help="of each version, in a pair")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=1, help="pairs that run at the same time, each on a core")
    args = parser.parse_args()
    versions = tuple(path.resolve() for path in args.versions)
    cores = sorted(os.sched_getaffinity(0))
    work = [(versions, args.workload, args.rounds, args.warmup, cores[n % args.at_once]) for n in range(args.pairs)]
    with ThreadPoolExecutor(args.at_once) as pool:
        found = list(pool.map(lambda job: pair(*job), work))
    ratios = [after / before for before, after in found]
    low, high = interval(ratios)
    fields = {
        "workload": args.workload,
        "before_s": round(statistics.median(b for b, _ in found), 4),
        "after_s": round(statistics.median(a for _, a in found), 4),
        "ratio": round(statistics.median(ratios), 4),
        "from": round(low, 4),
        "to": round(high, 4),
        "ratios": [round(r, 3) for r in sorted(ratios)],
        "rounds": args.rounds,
    }
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
