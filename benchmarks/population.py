"""Memory follows the cohort, not the population: a million clients beside ten thousand.

    python benchmarks/population.py

Clients of 60 records are made when they are drawn, 100 a round, trained by dp-fedavg. Each population has a process
of its own. Prints one JSON line for each.
"""

import subprocess
import sys
import tempfile

import torch
from common import WORKLOADS, Clock, Memory, answer
from rounds import endless, job

from sordino.data.clients import LazyClients

COHORT, ROUNDS, LOAD = 100, 6, WORKLOADS["W2"]


def make(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(client)
    n = LOAD.records
    return torch.randn(n, 1, 28, 28, generator=rng), torch.randint(0, 10, (n,), generator=rng)


def measure(population: int, sampling: str) -> None:
    memory, clock = Memory(), Clock()
    keys = {"client_sampling": sampling, "client_rate": COHORT / population, "batch_size": LOAD.batch}
    clients = LazyClients(population, LOAD.records, make)
    with tempfile.TemporaryDirectory() as out:
        rounds = endless(job("dp-fedavg", clients, device="cpu", **keys), out)
        clock.start()
        for _ in range(clock.warmup + ROUNDS):
            next(rounds)
            clock.tick()
        rounds.close()
    found = clock.summary(COHORT * LOAD.records)
    answer(what="population", clients=population, sampling=sampling, **found, peak_mb=memory.peak_mb())


def main() -> None:
    if len(sys.argv) == 3:
        return measure(int(sys.argv[1]), sys.argv[2])
    for sampling in ("poisson", "fixed"):
        for population in (10_000, 1_000_000):
            subprocess.run([sys.executable, __file__, str(population), sampling], check=True)
    return None


if __name__ == "__main__":
    main()
