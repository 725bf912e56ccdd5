"""What every benchmark shares: two workloads, their data, a clock that notices neighbours, and memory.

Imports nothing of Sordino, so that the peers' environment can use it too.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

QUIET = 0.15  # cores that others may use during a round that counts
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Workload:
    clients: int
    records: int  # of each client
    cohort: int  # clients in a round
    batch: int

    @property
    def steps(self) -> int:
        """Of a client in a round: one pass over its records."""
        return self.records // self.batch


WORKLOADS = {
    "W1": Workload(clients=100, records=600, cohort=10, batch=60),  # a record's privacy: DP-SGD in every client
    "W2": Workload(clients=1000, records=60, cohort=100, batch=10),  # a client's: clip updates, central noise
}


def cnn() -> nn.Module:
    """The same network as sordino.models.cnn: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """60,000 random pictures [n, 1, 28, 28] and labels, from a file that processes map and share."""
    path = Path(tempfile.gettempdir()) / f"sordino-benchmark-{os.getuid()}.pt"
    if not path.is_file():
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(60_000, 1, 28, 28, generator=rng)
        own = path.with_suffix(f".{os.getpid()}")
        torch.save((x, torch.randint(0, 10, (60_000,), generator=rng)), own)
        own.replace(path)
    x, y = torch.load(path, mmap=True)
    return x, y


def by_client(load: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = data()
    return x.view(load.clients, load.records, 1, 28, 28), y.view(load.clients, load.records)


# --- the clock


class Clock:
    """`tick` after every round. A round counts if, meanwhile, others left the machine alone."""

    def __init__(self, warmup: int = 2, root: int | None = None) -> None:
        self.warmup, self.root = warmup, root
        self.rounds: list[tuple[float, float, float]] = []  # seconds, cores that others used, own CPU seconds
        self._last: tuple[float, float, float] | None = None

    def start(self) -> None:
        self._last = self._now()

    def tick(self) -> None:
        now = self._now()
        if self._last is not None:
            wall, busy, own = (a - b for a, b in zip(now, self._last, strict=True))
            self.rounds.append((wall, max(0.0, busy - own) / wall, own))
        self._last = self._now()  # looking took time of its own

    def _now(self) -> tuple[float, float, float]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        with open("/proc/stat") as file:  # noqa: PTH123
            v = [int(i) for i in file.readline().split()[1:8]]
        pids = tree(self.root)
        own = time.process_time() if pids == [os.getpid()] else sum(_cpu(p) for p in pids)
        return time.perf_counter(), (sum(v) - v[3] - v[4]) / TICKS, own

    def quiet(self) -> list[tuple[float, float, float]]:
        return [r for r in self.rounds[self.warmup :] if r[1] <= QUIET]

    def summary(self, records: float) -> dict[str, object]:
        quiet = self.quiet()
        noisy = len(quiet) < 3
        kept = self.rounds[self.warmup :] if noisy else quiet
        seconds = [r[0] for r in kept]
        median = statistics.median(seconds)
        return {
            "s_per_round": round(median, 5),
            "s_min": round(min(seconds), 5),
            "s_max": round(max(seconds), 5),
            "cpu_s": round(statistics.median(r[2] for r in kept), 4),
            "records_per_s": round(records / median, 1),
            "rounds": len(kept),
            "left_out": len(self.rounds) - self.warmup - len(kept),
            "noisy": noisy,
            "other_cores": round(statistics.mean(r[1] for r in kept), 3),
        }


def tree(root: int | None = None) -> list[int]:
    """A process (this one) and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, todo = [], [root or os.getpid()]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # gone
        return []


def _cpu(pid: int) -> float:
    return sum(int(v) for v in _stat(pid)[11:15]) / TICKS  # its own and its dead children's


# --- memory


class Memory(threading.Thread):
    """Peak memory: of one process its high-water mark; of several, the highest sum of their shares (PSS),
    looked at once a second. A page that processes share is never counted twice."""

    def __init__(self, root: int | None = None) -> None:
        super().__init__(daemon=True)
        self.root, self.shares, self._end = root, 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._end.wait(1.0):
            pids = tree(self.root)
            if len(pids) > 1:
                self.shares = max(self.shares, sum(_field(p, "smaps_rollup", "Pss:") for p in pids))

    def peak_mb(self) -> int:
        self._end.set()
        self.join()
        return round(self.shares or _field(os.getpid(), "status", "VmHWM:"))


def _field(pid: int, file: str, name: str) -> float:
    try:
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


# --- the command line and the answer


def arguments(what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=what.splitlines()[0])
    parser.add_argument("--workload", default="W1", choices=sorted(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=8, help="quiet rounds to time")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them")
    parser.add_argument("--seconds", type=float, default=20.0, help="stop after this long in any case")
    return parser


class Enough:
    """Says when there are enough quiet rounds, or no more time."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.start = args, 0.0

    def __call__(self, clock: Clock) -> bool:
        self.start = self.start or time.perf_counter()  # from the first question on: start-up is not counted
        over = time.perf_counter() - self.start > self.args.seconds
        return len(clock.quiet()) >= self.args.rounds or (over and len(clock.rounds) >= self.args.warmup + 3)


def answer(**fields: object) -> None:
    print(json.dumps(fields | {"torch": torch.__version__}), flush=True)
