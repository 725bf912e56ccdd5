"""Freed memory is kept: the same large blocks again and again cost no new pages."""

import json
import platform
import resource
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, json, os, resource, torch
from sordino.federations.heap import M_MMAP_THRESHOLD, keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks = [torch.ones(4_000_000) for _ in range(4)]  # 64 MB, given back at once
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def child(keep):
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # blocks of 1 MB and more come from the system, one by one
    if keep:
        assert keep_freed_memory()
    faults()
    print(json.dumps([keep, faults()]), flush=True)
for keep in (True, False):  # torch is imported once for two processes
    pid = os.fork()
    if pid == 0:
        child(keep)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_blocks_that_come_back_cost_no_page_faults():
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    faults = dict(json.loads(line) for line in out.stdout.splitlines())
    pages = 5 * 64_000_000 // resource.getpagesize()  # touched in all
    assert faults[True] < 0.05 * pages
    assert faults[False] > 0.5 * pages  # so there is something to gain
