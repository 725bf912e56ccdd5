"""How many workers fit on this machine: its cores and its free memory, with the limits of a container counted."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sordino.core.errors import RunError
from sordino.federations.simulator import COPIES

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
OWN = 0.15 * 2**30  # bytes of each worker beside the weights that it trains: model, records, activations
BASE = 0.3 * 2**30  # bytes of the modules, which all workers share
HUGE = 1 << 60  # limits above it mean none


def cores() -> int:
    """Return the number of cores that this process may use."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _groups("cpu"):
        if (quota := _quota(folder)) is not None:
            found = min(found, max(1, math.floor(quota)))
    return found


def free_memory() -> float:
    """Return the bytes of memory that this process may still use; infinite where the system does not say."""
    lines = _text(PROC / "meminfo").splitlines()
    free = [1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for folder in _groups("memory"):
        for most, now in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = _text(folder / most), _text(folder / now)
            if limit.isdigit() and int(limit) < HUGE and used.isdigit():
                free.append(max(0.0, int(limit) - int(used) + _reclaimable(folder)))
    return min(free, default=math.inf)


@dataclass(frozen=True)
class Room:
    """The memory that workers take on one machine, roughly, in bytes."""

    shared: float = BASE  # by all of them together: modules and records
    each: float = OWN  # by each of them

    @staticmethod
    def of(records: float, dim: int, cohort: float, memory_gb: float) -> Room:
        """Return the room for workers that share `records` bytes and train a cohort of models of `dim` weights."""
        weights = min(memory_gb * 2**30, COPIES * 4 * dim * largest(cohort))
        return Room(BASE + records, OWN + weights)

    def taken(self, workers: int) -> float:
        """Return what so many workers take."""
        return self.shared + workers * self.each

    def fitting(self) -> int:
        """Return how many workers fit into the memory that is free now."""
        free = free_memory() - self.shared
        return max(0, math.floor(free / self.each)) if math.isfinite(free) else HUGE

    def check(self, workers: int) -> None:
        """Raise an error if so many workers do not fit into the memory that is free now."""
        if workers <= (fit := self.fitting()):
            return
        way = f"Set workers = {fit} or fewer, or lower memory_gb" if fit else "Lower memory_gb, or use the simulator"
        raise RunError(
            f"workers = {workers} may take about {self.taken(workers) / 2**30:.1f} GB of memory, and "
            f"{free_memory() / 2**30:.1f} GB are free here. {way}."
        )


def largest(cohort: float) -> int:
    """Return about the largest random cohort of a run with this expected cohort."""
    return math.ceil(cohort + 2 * math.sqrt(cohort))


def chosen(blocks: int, cohort: float, room: Room) -> int:
    """Return the number of workers for this machine: no more than it has cores and memory for, and than can be busy."""
    return max(1, min(cores(), blocks, largest(cohort), room.fitting()))


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, of either version, from its own up to the root."""
    for line in _text(PROC / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        root = GROUPS if number == "0" else GROUPS / controller
        inner = root / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents)


def _quota(folder: Path) -> float | None:
    """Return the cores that a control group may use; None if it sets no limit."""
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _reclaimable(folder: Path) -> int:
    """Return the bytes of files in a control group's memory that the system can drop."""
    lines = _text(folder / "memory.stat").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
