"""Seconds of a round on one thread, on all threads, and by worker processes or Ray actors, as a Markdown table.

    python benchmarks/workers.py [--cohorts 10 100] [--threads 1 2] [--workers 1 2] [--ray 2] [--seconds 80]

The network of the benchmarks, batches of 60 records, DP-SGD. 10 clients a round are drawn from 100 of 600 records and
take 10 steps each; 100 a round are drawn from 1000 of 60 records and take 2 steps each. Cohorts are random and the same
for all contestants. These are opened first and then take turns, one round each, so that neighbours on the machine hit
them alike. A contestant `workers = 8, 64 blocks` has the most workers with every number of blocks, and the other
numbers of workers with the first one.

`limit` is the time of a round if as many processes as the machine has cores each compute rounds of their own, with one
thread each, divided by their number: no dealing of one round can be faster. Processor seconds are those of all
processes; `slowest` are those of the worker that computed longest in a round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Workload, by_client, cnn

from sordino.federations.blocks import usual
from sordino.federations.capacity import cores
from sordino.runs import build, loop
from sordino.spec import spec

LOADS = {10: Workload(clients=100, records=600, cohort=10, batch=60), 100: Workload(1000, 60, cohort=100, batch=60)}
STEPS = {10: 10, 100: 2}
LIMIT = 2.0  # seconds in which the limit is measured
RESERVE = 8.0  # seconds that the limit takes with the start of its processes


def clients(load: Workload) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = by_client(load)
    return list(zip(x.clone(), y.clone(), strict=True))


def cohort(load: Workload, number: int) -> list[int]:
    """A random cohort, the same for all contestants."""
    drawn = np.random.default_rng(number + 1).choice(load.clients, load.cohort, replace=False)
    return sorted(int(i) for i in drawn)


def job_of(load: Workload, data: Any, **keys: object) -> Any:
    wanted = {"method": "dp-sgd", "rounds": 50, "local_steps": STEPS[load.cohort], "batch_size": load.batch, "seed": 0}
    wanted |= {"client_rate": load.cohort / load.clients, "epsilon": 8.0, "device": "cpu", "learning_rate": 0.1}
    return build.build(spec.from_dict(wanted | {"mode": "research"} | keys), cnn(), data)


def computed(pid: int) -> float:
    """Seconds that a process has computed; those of its first thread, where the system says them precisely."""
    precise = Path(f"/proc/{pid}/schedstat")
    if pid != os.getpid() and precise.is_file():
        return int(precise.read_text().split()[0]) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Rounds:
    """A federation that is opened on a workload, and the times of its rounds."""

    def __init__(self, name: str, load: Workload, data: Any, threads: int = 1, **keys: object) -> None:
        self.name, self.load, self.threads = name, load, threads
        torch.set_num_threads(threads)
        job = job_of(load, data, **keys)
        self.federation, self.state = job.federation, loop.begin(job)
        self.walls: list[float] = []
        self.processors: list[float] = []
        self.slowest: list[float] = []
        start = time.perf_counter()
        self.turn(-1)  # starts processes, warms up
        self.start = time.perf_counter() - start

    def turn(self, number: int) -> None:
        """Time one round."""
        torch.set_num_threads(self.threads)
        ids, pids = cohort(self.load, number), getattr(self.federation, "processes", [])
        before, own, wall = [computed(pid) for pid in pids], time.process_time(), time.perf_counter()
        self.federation.ask("train", self.state, ids)
        wall, own = time.perf_counter() - wall, time.process_time() - own
        shares = [computed(pid) - earlier for pid, earlier in zip(pids, before, strict=False)]
        if number >= 0:
            self.walls.append(wall)
            self.processors.append(own + sum(shares))
            self.slowest.append(max(shares, default=0.0))

    def row(self, one: float) -> str:
        wall, processor, slowest = (statistics.median(v) for v in (self.walls, self.processors, self.slowest))
        longest = f"{slowest:.3f}" if slowest else ""
        cells = (
            f"{wall:.3f} | {min(self.walls):.3f} | {one / wall:.2f} | {processor:.3f} | {longest} | {self.start:.1f}"
        )
        return f"| {self.name} | {cells} | {len(self.walls)} |"


def alone(load: Workload, keys: dict[str, object], number: int, barrier: Any, answers: Any) -> None:
    """Compute rounds beside other processes that do the same."""
    torch.set_num_threads(1)
    job = job_of(load, clients(load), **keys)
    state = loop.begin(job)
    job.federation.ask("train", state, cohort(load, -1))
    barrier.wait()
    done, start = 0, time.perf_counter()
    while time.perf_counter() < start + LIMIT or not done:
        job.federation.ask("train", state, cohort(load, number + done))
        done += 1
    answers.put((time.perf_counter() - start) / done)


def limit(load: Workload, processes: int, **keys: object) -> float:
    """Seconds of a round if so many processes compute rounds of their own, over their number."""
    context = multiprocessing.get_context("forkserver")
    barrier, answers = context.Barrier(processes), context.Queue()
    crowd = [
        context.Process(target=alone, args=(load, keys, k, barrier, answers), daemon=True) for k in range(processes)
    ]
    for process in crowd:
        process.start()
    seconds = [answers.get(timeout=120) for _ in crowd]
    for process in crowd:
        process.join()
    return 1 / sum(1 / s for s in seconds)


def measure(load: Workload, asked: argparse.Namespace, end: float) -> None:
    data, most = clients(load), max(asked.workers, default=0)
    few = sorted({min(b, load.clients) for b in asked.blocks}, key=[min(b, load.clients) for b in asked.blocks].index)
    contestants = [Rounds(f"simulator, {n} thread{'s' * (n > 1)}", load, data, n) for n in asked.threads]
    contestants.append(Rounds(f"simulator, 1 thread, {few[0]} blocks", load, data, blocks=few[0]))
    for kind, counts in (("workers", asked.workers), ("ray", asked.ray)):
        for n in counts:
            for b in few if n == most and kind == "workers" else few[:1]:
                name = f"{kind} = {n}, {b} blocks"
                contestants.append(Rounds(name, load, data, federation=kind, workers=n, blocks=b))
    for number in range(asked.rounds):
        if number > 1 and time.monotonic() > end:
            break
        for contestant in contestants:
            contestant.turn(number)
    one = statistics.median(contestants[0].walls)
    title = f"{load.cohort} of {load.clients} clients a round, {STEPS[load.cohort]} steps of {load.batch} records each:"
    print(f"\n{title}\n")
    print("| what | s a round | fastest | times one thread | processor s | slowest | first round, s | rounds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for contestant in contestants:
        print(contestant.row(one), flush=True)
    for contestant in contestants:
        contestant.federation.close()
    processes = asked.limit or cores()
    wall = limit(load, processes)
    print(
        f"| limit, {processes} processes | {wall:.3f} | | {one / wall:.2f} | {wall * processes:.3f} | | | |", flush=True
    )


def siblings() -> str:
    """The hardware threads of the first core, as the system tells them."""
    path = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    return path.read_text().strip() if path.is_file() else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    powers = sorted({1, *(2**k for k in range(1, 8) if 2**k <= cores()), cores()})
    parser.add_argument("--cohorts", type=int, nargs="*", default=sorted(LOADS), choices=sorted(LOADS))
    parser.add_argument("--rounds", type=int, default=20, help="most rounds of each contestant")
    parser.add_argument("--workers", type=int, nargs="*", default=powers)
    parser.add_argument("--ray", type=int, nargs="*", default=[])
    parser.add_argument("--threads", type=int, nargs="*", default=sorted({1, cores()}))
    parser.add_argument("--blocks", type=int, nargs="*", default=[usual(10), 256], help="the first is the default")
    parser.add_argument("--limit", type=int, default=0, help="processes of the limit (0: one per core)")
    parser.add_argument("--seconds", type=float, default=80.0, help="about how long all of it may take")
    asked = parser.parse_args()
    print(f"{cores()} cores (threads of the first: {siblings()}), torch {torch.__version__}", flush=True)
    end = time.monotonic() + asked.seconds
    for left in range(len(asked.cohorts), 0, -1):  # the time that is left is shared evenly
        share = (end - time.monotonic()) / left
        measure(LOADS[asked.cohorts[-left]], asked, time.monotonic() + share - RESERVE)


if __name__ == "__main__":
    main()
