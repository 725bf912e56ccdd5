"""Freed memory is kept: the same large blocks again and again cost no new pages."""

import platform
import resource
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from sordino.engines.heap import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        a = torch.ones(1_000_000)  # 4 MB, given back at once
        del a
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

    pages = 4_000_000 // resource.getpagesize()
    assert faults("keep") < pages  # less than one block in fifty
