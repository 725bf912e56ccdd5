"""How many workers are chosen: by cores, memory and what can be busy, with the limits of containers counted."""

from __future__ import annotations

import math

import pytest
import torch

from sordino.core.errors import RunError
from sordino.federations import capacity
from sordino.federations.capacity import Room
from support.split import BLOCKS, SIZES, job, train, weights

GB = 2**30
ROOM = Room(shared=1.0 * GB, each=0.5 * GB)


def machine(monkeypatch, tmp_path, cores=16, free_gb=64.0, groups=None):
    """Have this process find so many cores, so much free memory and control groups with these files."""
    monkeypatch.setattr(capacity.os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {int(free_gb * 2**20)} kB\n")
    for path, text in (groups or {}).items():
        place = proc / "self" / "cgroup" if path == "" else cgroup / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    monkeypatch.setattr(capacity, "PROC", proc)
    monkeypatch.setattr(capacity, "GROUPS", cgroup)


def test_without_limits_all_cores_and_all_free_memory_count(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, 16, 12.5)
    assert capacity.cores() == 16 and capacity.free_memory() == 12.5 * GB
    monkeypatch.setattr(capacity, "PROC", tmp_path / "none")
    assert math.isinf(capacity.free_memory()) and Room().fitting() > 10**6  # a system that says nothing


@pytest.mark.parametrize(
    "groups",
    [
        {
            "": "0::/docker/one\n",
            "cpu.max": "max 100000\n",
            "docker/cpu.max": "350000 100000\n",
            "docker/memory.max": f"{4 * GB}\n",
            "docker/memory.current": f"{2 * GB}\n",
            "docker/memory.stat": f"anon 7\ninactive_file {GB}\n",
            "docker/one/memory.max": "max\n",
            "docker/one/memory.current": "5\n",
        },
        {
            "": "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n",
            "cpu/job/cpu.cfs_quota_us": "350000\n",
            "cpu/job/cpu.cfs_period_us": "100000\n",
            "memory/job/memory.limit_in_bytes": f"{3 * GB}\n",
            "memory/job/memory.usage_in_bytes": "0\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": "0\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_the_limits_of_a_container_count(monkeypatch, tmp_path, groups):
    machine(monkeypatch, tmp_path, 16, 64.0, groups)
    assert capacity.cores() == 3 and capacity.free_memory() == 3 * GB


def test_cores_blocks_cohort_and_memory_each_bound_the_number(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, 16, 64.0)
    assert capacity.chosen(64, 100, ROOM) == 16
    assert capacity.chosen(8, 100, ROOM) == 8
    assert capacity.chosen(64, 1, ROOM) == 3  # a random cohort of one expected client has hardly ever more than three
    (tmp_path / "proc" / "meminfo").write_text(f"MemAvailable: {int(3.6 * 2**20)} kB\n")
    assert capacity.chosen(64, 100, ROOM) == ROOM.fitting() == 5
    (tmp_path / "proc" / "meminfo").write_text("MemAvailable: 1000 kB\n")
    assert capacity.chosen(64, 100, ROOM) == 1 and ROOM.fitting() == 0


def test_weights_count_up_to_memory_gb():
    small, large = Room.of(0, 1000, 10, 2.0), Room.of(5.0 * GB, 10**9, 10, 2.0)
    assert small.each < 1.01 * Room().each and large.each == Room().each + 2 * GB
    assert large.shared == Room().shared + 5 * GB
    assert large.taken(3) == large.shared + 3 * large.each


def test_more_than_fit_are_refused_in_one_line_before_any_cost(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, 16, 0.8)
    made = job(method="nbafl", federation="workers")
    assert made.federation.count == 3  # of 0.5 GB beside what they share
    wanted = r"workers = 5 may take about 1\.\d GB of memory, and 0\.8 GB are free here\. Set workers = 3 or fewer"
    with pytest.raises(RunError, match=wanted) as error:
        train(tmp_path / "runs", "many", federation="workers", workers=5)
    assert "\n" not in str(error.value) and not (tmp_path / "runs").exists()
    machine(monkeypatch, tmp_path / "less", 16, 0.2)
    with pytest.raises(RunError, match="Lower memory_gb, or use the simulator"):
        train(tmp_path / "runs", "one", federation="workers")


def test_the_number_of_a_run_follows_the_machine_and_its_blocks_do_not(monkeypatch, tmp_path):
    for cores in (1, 3, 16):
        machine(monkeypatch, tmp_path / str(cores), cores)
        federation = job(method="nbafl", federation="workers").federation
        assert federation.blocks == len(SIZES) and federation.count == min(cores, len(SIZES))


def test_the_bits_of_a_run_do_not_depend_on_the_machine(monkeypatch, tmp_path):
    found = []
    for cores in (1, 3):
        machine(monkeypatch, tmp_path / str(cores), cores)
        found.append(weights(train(tmp_path / "runs", str(cores), federation="workers", algorithm="fedavg")))
    assert torch.equal(*found)


def test_more_workers_than_blocks_is_noted():
    made = job(method="nbafl", federation="workers", workers=16, blocks=BLOCKS)
    assert made.federation.count == BLOCKS
    assert [note for note in made.notes if f"in {BLOCKS} blocks" in note and "Raise blocks" in note]
    assert not [note for note in job(method="nbafl", federation="workers", workers=2).notes if "blocks" in note]
