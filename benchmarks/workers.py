"""Seconds a round of the simulator, of worker processes and of Ray actors, on the same work and with the same blocks.

    python benchmarks/workers.py [--rounds 6] [--workers 1 2] [--ray 2] [--blocks 4]

All federations are opened first and then take turns, one round each, so that neighbours on the machine hit them alike.
Prints wall-clock seconds and processor seconds (of all processes) a round; on a shared machine the latter say more. The
simulator computes with one thread, as every process does; `simulator, 2 threads` lets torch use two.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
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


class Rounds:
    """A federation that is opened on the workload, and the times of its rounds."""

    def __init__(self, name: str, data: list[tuple[torch.Tensor, torch.Tensor]], threads: int = 1, **keys: object):
        wanted = {"method": "dp-sgd", "rounds": 50, "local_epochs": 1.0, "batch_size": LOAD.batch, "mode": "research"}
        wanted |= {"client_rate": LOAD.cohort / LOAD.clients, "epsilon": 8.0, "device": "cpu", "learning_rate": 0.1}
        self.name, self.threads = name, threads
        job = build.build(spec.from_dict(wanted | keys), cnn(), data)
        self.federation, self.state = job.federation, loop.begin(job)
        self.walls: list[float] = []
        self.processors: list[float] = []
        start = time.perf_counter()
        self.turn(-1)  # starts processes, warms up
        self.start = time.perf_counter() - start

    def turn(self, number: int) -> None:
        """Time one round; all federations have the same cohort in it."""
        torch.set_num_threads(self.threads)
        cohort = sorted((17 * number + 10 * k) % LOAD.clients for k in range(LOAD.cohort))
        pids = getattr(self.federation, "processes", [])
        wall, busy = time.perf_counter(), processor_seconds(pids)
        self.federation.ask("train", self.state, cohort)
        if number >= 0:
            self.walls.append(time.perf_counter() - wall)
            self.processors.append(processor_seconds(pids) - busy)

    def show(self) -> None:
        wall, processor = statistics.median(self.walls), statistics.median(self.processors)
        text = f"{self.name:24} {wall:8.3f} s wall {processor:8.3f} s processor a round (median of {len(self.walls)}"
        print(f"{text}; fastest {min(self.walls):.3f}); the first took {self.start:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--ray", type=int, nargs="*", default=[])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=100.0, help="no further round after so long")
    asked = parser.parse_args()
    end, data, blocks = time.monotonic() + asked.seconds, clients(), asked.blocks
    kinds = [Rounds(f"simulator, {n} thread{'s' * (n > 1)}", data, n) for n in asked.threads]
    kinds.append(Rounds(f"simulator, {blocks} blocks", data, blocks=blocks))
    for kind, counts in (("workers", asked.workers), ("ray", asked.ray)):
        kinds += [Rounds(f"{kind}, {n}", data, federation=kind, workers=n, blocks=blocks) for n in counts]
    for number in range(asked.rounds):
        for kind in kinds if time.monotonic() < end else ():
            kind.turn(number)
    for kind in kinds:
        kind.show()
        kind.federation.close()


if __name__ == "__main__":
    main()
