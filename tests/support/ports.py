"""Ports for a federation, outside the range from which the system takes those of outgoing connections."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 12000, 32000  # the system's own range begins at 32768
USED = (0, 1, *range(101, 107))  # gate, SuperLink and nodes, counted from the port of a federation


def free_ports() -> int:
    """Return a port p such that p, p + 1 and p + 101 to p + 106 are free; test processes choose at random."""
    dice = random.SystemRandom()
    for _ in range(200):
        port = dice.randrange(FIRST, LAST)
        if all(_free(port + k) for k in USED):
            return port
    raise OSError("no free ports")


def _free(port: int) -> bool:
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
