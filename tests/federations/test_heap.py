"""Freed memory is kept: the same large blocks again and again cost no new pages."""

import platform
import resource
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource, sys, torch
from sordino.federations.heap import M_MMAP_THRESHOLD, keep_freed_memory
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # blocks of 1 MB and more come from the system, one by one
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [torch.ones(4_000_000) for _ in range(4)]  # 64 MB, given back at once
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_blocks_that_come_back_cost_no_page_faults():
    def faults(how):
        out = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
        return int(out.stdout)

    pages = 20 * 64_000_000 // resource.getpagesize()  # touched in all
    assert faults("keep") < 0.05 * pages
    assert faults("give back") > 0.5 * pages  # so there is something to gain
