"""What clients keep follows those who took part, not the population: a million clients beside ten thousand.

    python benchmarks/client_state.py                 # memory of whole runs, a process each
    python benchmarks/client_state.py touched         # seconds of the store, by how many clients were ever touched

The runs are SCAFFOLD (each client keeps a row as long as the model) on clients that are made when they are drawn, about
50 a round, without and with a private method; with memory_gb far below what they keep, rows leave memory. Prints one
JSON line for each: peak memory, rows on file, bytes of the file, seconds a round.
"""

import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import Memory, answer
from torch import nn

import sordino
from sordino.data.clients import LazyClients
from sordino.federations.store import Store

COHORT, ROUNDS, RECORDS, FEATURES, CLASSES = 50, 30, 10, 200, 10


def make(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(client)
    return torch.randn(RECORDS, FEATURES, generator=rng), torch.randint(0, CLASSES, (RECORDS,), generator=rng)


def measure(algorithm: str, method: str, population: int, memory_gb: float) -> None:
    torch.set_num_threads(1)
    memory, start = Memory(), time.perf_counter()
    torch.manual_seed(0)
    keys = {"rounds": ROUNDS, "client_rate": COHORT / population, "local_steps": 3, "memory_gb": memory_gb, "seed": 0}
    with tempfile.TemporaryDirectory() as out:
        result = sordino.train(
            nn.Linear(FEATURES, CLASSES),
            LazyClients(population, RECORDS, make),
            algorithm=algorithm, method=method, device="cpu", out=out, checkpoint_seconds=0.0, epsilon=8.0, **keys,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        path = result.folder / "private" / "clients.sqlite"
        rows, size = _rows(path), path.stat().st_size if path.exists() else 0
    drawn = sum(r.clients for r in result.private.history)
    found = {"algorithm": algorithm, "method": method, "clients": population, "memory_gb": memory_gb, "drawn": drawn}
    answer(**found, rows=rows, file_kb=size >> 10, s_per_round=round(seconds / ROUNDS, 4), peak_mb=memory.peak_mb())


def _rows(path: Path) -> int:
    if not path.exists():
        return 0
    file = sqlite3.connect(path)
    try:
        return int(file.execute("SELECT COUNT(DISTINCT client) FROM kept WHERE row IS NOT NULL").fetchone()[0])
    finally:
        file.close()


def _timed(act: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    act(*arguments)
    return time.perf_counter() - start


def touched() -> None:
    """Seconds for a cohort's rows to be read, written and saved when so many clients have one already."""
    for count in (1_000, 10_000, 100_000, 300_000):
        with tempfile.TemporaryDirectory() as out:
            store, rows = Store(0.001), torch.randn(1000, 60)
            store.open(Path(out) / "private" / "clients.sqlite", 0)
            for first in range(0, count, 1000):
                store.write("own", range(first, first + 1000), rows)
            store.save(1)
            spent = {"read": 0.0, "write": 0.0, "save": 0.0}
            for done in range(2, 7):
                ids = torch.randint(0, count, (COHORT,)).tolist()
                spent["read"] += _timed(store.read, "own", ids, rows[:COHORT])
                spent["write"] += _timed(store.write, "own", ids, rows[:COHORT])
                spent["save"] += _timed(store.save, done)
            store.close()
            answer(what="store", touched=count, **{f"{k}_ms": round(1000 * v / 5, 2) for k, v in spent.items()})


def main() -> None:
    if sys.argv[1:] == ["touched"]:
        return touched()
    if len(sys.argv) == 5:
        return measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    for algorithm, method, memory_gb in (
        ("fedavg", "none", 2.0),
        ("scaffold", "none", 2.0),
        ("scaffold", "none", 0.002),
        ("scaffold", "dp-sgd", 2.0),
        ("ditto", "none", 2.0),
    ):
        for population in (10_000, 1_000_000):
            arguments = [algorithm, method, str(population), str(memory_gb)]
            subprocess.run([sys.executable, __file__, *arguments], check=True)
    return None


if __name__ == "__main__":
    main()
