"""Memory allocator settings: the C library keeps freed memory for the next step instead of returning it to the system.

A training step allocates and frees the same tens of megabytes again and again. By default glibc returns them to the
system each time, and half of the time of a step of a small network goes into page faults. The setting applies to the
whole process for as long as it lives; on systems without glibc it does nothing.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory, and return whether it accepted the settings."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    wanted = ((M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 << 20))
    return all([mallopt(option, value) == 1 for option, value in wanted])  # noqa: C419 (every call must be made)
