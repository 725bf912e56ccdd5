"""Small real runs of the three systems in both forms, each made once when a test asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import sordino
from support.fedsdp_jobs import tagged
from support.problems import federation, held_out, linear

OPTIONS = {"udp-fl-paper": {"mechanism": "auto"}, "adaptive-noise-paper": {"local_steps": 2}}


@pytest.fixture(scope="session")
def real_run(tmp_path_factory) -> Callable[[str], Path]:
    """real_run("fedsdp") is the folder of a run of four rounds."""

    @cache
    def made(method: str) -> Path:
        clients = tagged(federation()) if method.startswith("fedsdp") else federation()
        x, y = held_out()
        keys = {"rounds": 4, "epsilon": 4.0, "delta": 1e-5, "seed": 1, "mode": "research", "device": "cpu"}
        result = sordino.train(
            linear(), clients, test=(x, y), test_clients=np.arange(len(y)) % 8, method=method,
            out=tmp_path_factory.mktemp("runs"), **keys, **OPTIONS.get(method, {}),
        )  # fmt: skip
        return result.folder

    return made
