"""Ask the C library to keep freed memory for the next step instead of handing it back.

A training step allocates and frees the same tens of megabytes again and again. By default glibc returns them to the
system each time, and half of a step of a small network goes into page faults. This holds for the whole process and
for as long as it lives; on other systems it does nothing.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Whether the C library agreed."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    wanted = ((M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 << 20))
    return all([mallopt(option, value) == 1 for option, value in wanted])  # noqa: C419 (every call is wanted)
