"""Ray actors as workers, on one machine or on several; `workers.py` deals the clients to them.

The environment variable RAY_ADDRESS names the Ray cluster; if this process is connected to one already, that one is
used. Otherwise a local Ray is started for the run and ended with it. Every actor takes one CPU and, with
`device = cuda`, a GPU or its part of one. Ray carries bytes only, which `wire.py` makes; what is defined in a script or
a notebook is sent by value, because the other processes cannot import it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import re
import socket
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from typing import Any

import torch

from sordino.core.errors import RunError, SpecError
from sordino.federations import wire
from sordino.federations.host import Desk

ADDRESS = "RAY_ADDRESS"
PIECE = 16 << 20  # bytes of a share that are in Ray's memory at a time, so that records do not overflow to its disk
PATIENCE = 120.0  # seconds in which actors must start
LOCAL = {"address": "local", "include_dashboard": False}


class Actor:
    """A worker inside an actor."""

    def __init__(self) -> None:
        torch.set_num_threads(1)  # last bits depend on the number of threads, which must not depend on the machine
        self._desk, self._pieces = Desk(packed), list[bytes]()

    def about(self) -> tuple[int, str, str]:
        """Return the id of the process, the name of its machine and the versions that it runs."""
        return os.getpid(), socket.gethostname(), versions()

    def take(self, piece: bytes) -> None:
        """Keep the beginning of a long request."""
        self._pieces.append(piece)

    def answer(self, data: bytes) -> bytes:
        """Answer the request that ends with these bytes."""
        pieces, self._pieces = self._pieces, []
        return self._desk.answer(b"".join((*pieces, data)))


class RayActors:
    """Ray actors as workers; see `Transport`."""

    shares = False  # they may be on several machines

    def __init__(self, device: str = "cpu") -> None:
        try:
            import ray
        except ImportError as error:
            raise SpecError(
                'federation = ray needs Ray, which is not installed; try: pip install "sordino[ray]".'
            ) from error
        self._ray: Any = ray
        self._device = device
        self._actors: list[Any] = []
        self._about: list[tuple[int, str, str]] = []
        self._connected = False  # whether the connection is ours to close

    @property
    def pids(self) -> list[int]:
        """Return the ids of the actors' processes, each on its machine."""
        return [pid for pid, _, _ in self._about]

    def share(self, value: Any, what: str) -> Any:
        """Raise an error: actors share no memory."""
        raise RuntimeError("Ray actors share no memory")

    def pack(self, value: Any, what: str = "a message") -> bytes:
        """Serialise an object for the actors."""
        return packed(value, what)

    def check(self, count: int) -> None:
        """Raise an error if a Ray that runs already has too little for so many actors."""
        if self._ray.is_initialized() or os.environ.get(ADDRESS):
            try:
                self._connect(count)
                self._gpus(count)
            finally:
                self._disconnect()
        elif self._device == "cuda" and not torch.cuda.is_available():
            raise SpecError("device = cuda, but torch finds no CUDA device. Use device = cpu.")

    def start(self, count: int, module: str) -> None:
        """Start the actors, on as many machines as Ray has."""
        ray = self._ray
        self._connect(count)
        usage = {"num_cpus": 1, "num_gpus": self._gpus(count), "max_restarts": 0, "max_task_retries": 0}
        actor = ray.remote(**usage, scheduling_strategy="SPREAD")(Actor)
        self._actors = [actor.remote() for _ in range(count)]
        refs = [a.about.remote() for a in self._actors]
        ready, _ = ray.wait(refs, num_returns=count, timeout=PATIENCE)
        if len(ready) < count:
            raise RunError(
                f"Ray started {len(ready)} of {count} workers in {PATIENCE:g} seconds: others may hold its CPUs or "
                "GPUs. Lower workers, or wait until they are free, and resume the run."
            )
        self._about = [self._got(k, ref) for k, ref in enumerate(refs)]
        for _, machine, theirs in self._about:
            if theirs != versions():
                raise RunError(f"{machine} runs {theirs} and this process {versions()}: install the same on both.")

    def deal(self, shares: Iterable[bytes]) -> list[bytes]:
        """Send each actor its share, piece by piece; return all answers, in the order of the actors."""
        refs = []
        for k, share in enumerate(shares):
            last = (len(share) - 1) // PIECE * PIECE
            for i in range(0, last, PIECE):
                self._got(k, self._actors[k].take.remote(share[i : i + PIECE]))
            refs.append(self._actors[k].answer.remote(share[last:]))
        return self._answers(refs)

    def ask(self, question: bytes) -> list[bytes]:
        """Send all actors the same request; return their answers, in the order of the actors."""
        stored = self._ray.put(question)  # once for all actors of a machine
        return self._answers([actor.answer.remote(stored) for actor in self._actors])

    def end(self, at_once: bool) -> None:
        """End the actors, and the connection or the local Ray if it is ours."""
        actors, self._actors, self._about = self._actors, [], []
        for actor in actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._disconnect()

    def _connect(self, count: int) -> None:
        ray, address = self._ray, os.environ.get(ADDRESS)
        if ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        where = {"address": address} if address else LOCAL | {"num_cpus": count}
        try:
            _knock(address or "")
            with _quiet():
                ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            found = " ".join(str(error).split())
            what = f"reach the Ray of {ADDRESS} = {address}" if address else "start a local Ray"
            raise RunError(f"federation = ray: cannot {what} ({found}).") from error
        self._connected = True

    def _disconnect(self) -> None:
        if self._connected:
            self._connected = False
            with _quiet():
                self._ray.shutdown()

    def _gpus(self, count: int) -> float:
        """Return the part of a GPU for each actor; raise an error if Ray has too little."""
        resources = self._ray.cluster_resources()
        cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        if cpus < count:
            raise RunError(f"workers = {count} need a CPU each, and Ray has {cpus}. Lower workers, or add machines.")
        if self._device != "cuda":
            return 0
        if not gpus:
            raise RunError("device = cuda, but Ray has no GPU. Use device = cpu, or add machines that have one.")
        return math.floor(1e4 / math.ceil(count / gpus)) / 1e4  # Ray counts in steps of 1e-4

    def _answers(self, refs: list[Any]) -> list[bytes]:
        answers, waiting = [b""] * len(refs), {ref: k for k, ref in enumerate(refs)}
        while waiting:
            for ref in self._ray.wait(list(waiting), num_returns=1)[0]:
                k = waiting.pop(ref)
                answers[k] = self._got(k, ref)
        return answers

    def _got(self, k: int, ref: Any) -> Any:
        """Return the result of a call of actor k; raise an error if the actor is gone."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            machine = f" on {self._about[k][1]}" if self._about else ""
            reason = re.search(r"The actor [^.]*because[^.]*\.|$", str(error))
            found = (reason and reason[0]) or " ".join(str(error).split())[:200]
            raise RunError(
                f"worker {k + 1} of {len(self._actors)}{machine}, which holds clients of this run, is gone (Ray: "
                f"{found}) If memory was short, lower memory_gb or workers. What was saved is intact: resume the run."
            ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ignore Ray's own warnings: files and processes that it leaves to the garbage collector, and a tip on GPUs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _knock(address: str) -> None:
    """Raise an error if nobody answers at HOST:PORT, for which Ray itself would wait minutes."""
    if "://" in address:
        raise ValueError("start the run on a machine of the cluster and name its head as HOST:PORT")
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=10.0).close()


def packed(value: Any, what: str = "a message") -> bytes:
    """Serialise an object to bytes; what other processes cannot import is serialised by value."""
    return wire.packed(value, what, _by_value())


def versions() -> str:
    """Return the versions that all machines of a run must share, in words."""
    try:
        own = metadata.version("sordino")
    except metadata.PackageNotFoundError:  # imported from a source tree
        own = "(not installed)"
    return f"sordino {own} with torch {torch.__version__}"


@cache
def _by_value() -> type[pickle.Pickler]:
    from ray.cloudpickle import CloudPickler

    class ByValue(CloudPickler):
        def reducer_override(self, value: Any) -> Any:
            usual: Any = super()
            found = wire.reduced(value)
            return usual.reducer_override(value) if found is NotImplemented else found

    return ByValue
