"""Seconds a round of the simulator and of federations of processes, on the same work and with the same blocks.

    python benchmarks/workers.py [--rounds 6] [--workers 1 2] [--blocks 4]

Prints wall-clock seconds and processor seconds (of all processes) a round; on a shared machine the latter say more. The
simulator computes with one thread, as every process does; `simulator, 2 threads` lets torch use two.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path

import torch
from common import WORKLOADS, by_client, cnn

from sordino.runs import build, loop
from sordino.spec import spec

LOAD = WORKLOADS["W1"]


def clients() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = by_client(LOAD)
    return list(zip(x.clone(), y.clone(), strict=True))


def processor_seconds(pids: list[int]) -> float:
    """Seconds that this process and these have computed."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(name: str, rounds: int, data: list[tuple[torch.Tensor, torch.Tensor]], **keys: object) -> None:
    wanted = {"method": "dp-sgd", "rounds": 50, "local_epochs": 1.0, "batch_size": LOAD.batch, "mode": "research"}
    wanted |= {"client_rate": LOAD.cohort / LOAD.clients, "epsilon": 8.0, "device": "cpu", "learning_rate": 0.1}
    job = build.build(spec.from_dict(wanted | keys), cnn(), data)
    state, cohorts = (
        loop.begin(job),
        [sorted((17 * t + 10 * k) % LOAD.clients for k in range(LOAD.cohort)) for t in range(99)],
    )
    job.federation.ask("train", state, cohorts[-1])  # starts processes, warms up
    pids = getattr(job.federation, "processes", [])
    walls, processors = [], []
    for t in range(rounds):
        wall, busy = time.perf_counter(), processor_seconds(pids)
        job.federation.ask("train", state, cohorts[t])
        walls.append(time.perf_counter() - wall)
        processors.append(processor_seconds(pids) - busy)
    job.federation.close()
    middle = sorted(walls)[rounds // 2], sorted(processors)[rounds // 2]
    print(f"{name:24} {middle[0]:8.3f} s wall {middle[1]:8.3f} s processor a round (median of {rounds})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--blocks", type=int, default=4)
    asked = parser.parse_args()
    data = clients()
    for threads in asked.threads:
        torch.set_num_threads(threads)
        measure(f"simulator, {threads} thread{'s' * (threads > 1)}", asked.rounds, data)
    torch.set_num_threads(1)
    measure(f"simulator, {asked.blocks} blocks", asked.rounds, data, blocks=asked.blocks)
    for count in asked.workers:
        measure(f"workers = {count}", asked.rounds, data, federation="workers", workers=count, blocks=asked.blocks)


if __name__ == "__main__":
    main()
