"""W1 over 100 sites in Flower's simulation, through the server and the sites that real federations use.

    python benchmarks/flower_simulation.py --rounds 20 --json flower_simulation.json

100 sites with 600 records of MNIST each, client_rate 0.1 (Poisson), DP-SGD with batches of 60, one local epoch, the CNN
of 26,010 parameters. Flower simulates the nodes (Ray, `run_simulation`). The ServerApp is `deploy.server.serve` behind
`FlowerPost`; the ClientApp is the shim of deploy/template/client.py, whose socket follows from the partition. Behind
the sockets are 100 `FederationSite`, each with its own policy, ledger, answers and key, in a few processes, of which
each reads MNIST once. The same run file is then run by the simulator, and the models are compared.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import torch
from common import WORKLOADS, Memory
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file

from sordino.deploy import agreement, server
from sordino.deploy.daemon import SiteDaemon
from sordino.deploy.flower_post import FlowerPost
from sordino.deploy.folder import Roster, SiteEntry
from sordino.deploy.policy import Policy
from sordino.deploy.site import FederationSite
from sordino.deploy.site_data import SiteData
from sordino.deploy.template import client as shim
from sordino.federations.flower import Replies
from sordino.masking.identity import Identity
from sordino.runs import build, run
from sordino.spec import spec as specs
from sordino.spec.toml import to_toml

LOAD = WORKLOADS["W1"]
CLOSE = 1e-5  # largest difference of two models that were computed in the same order
SOCKETS = "SORDINO_BENCHMARK_SOCKETS"  # the folder of the sites' sockets, for the shim in Ray's actors
POLICY = Policy(
    epsilon_per_job=1e6,
    delta_per_job=0.5,
    epsilon_total=1e9,
    delta_total=0.9,
    methods=("dp-sgd",),
    units=("record",),
    viewers=("server", "public"),
    min_cohort=2,
    secure_noise=False,  # the model is compared with that of a simulator of the same seed
    answer_seconds=0.0,  # timing is what is measured here
)


def keys(sites: int, rounds: int) -> dict[str, Any]:
    """Return the run file: W1 on MNIST."""
    return {
        "dataset": "mnist", "clients": sites, "model": "cnn", "method": "dp-sgd", "rounds": rounds, "client_rate": 0.1,
        "batch_size": LOAD.batch, "local_epochs": 1.0, "learning_rate": 0.1, "epsilon": 8.0, "seed": 0,
        "mode": "research", "evaluate_every": rounds,
    }  # fmt: skip


# --- the sites


def hold(place: Path, roster: Roster, numbers: range, ready: Event, end: Event) -> None:
    """Hold some sites in this process, each behind its socket, until told to end."""
    torch.set_num_threads(1)
    os.environ["SORDINO_HOME"] = str(place / "home")
    agreement.shipped = functools.cache(agreement.shipped)  # every site reads the same benchmark, so read it once
    shared: dict[Any, Any] = {}
    daemons, sites = [], []
    for number in numbers:
        name = roster.sites[number].name
        folder = place / "sites" / name
        folder.mkdir(parents=True)
        data = SiteData("mnist", folder, client=number, _kept=shared)
        key = Identity.read(place / "keys" / name)
        sites.append(FederationSite(name, POLICY, data, roster, key, folder))
        daemons.append(SiteDaemon(place / f"{number}.sock", sites[-1].answer, POLICY.largest_letter))
        threading.Thread(target=daemons[-1].serve, daemon=True).start()
    ready.set()
    end.wait()
    for daemon in daemons:
        daemon.stop()
    for site in sites:
        site.close()


def roster_of(place: Path, sites: int) -> Roster:
    """Return a roster of new sites, whose keys are in the place."""
    (place / "keys").mkdir()
    entries = []
    for number in range(sites):
        identity = Identity.new()
        identity.write(place / "keys" / f"site-{number + 1}")
        entries.append(SiteEntry(f"site-{number + 1}", 1, identity.public))
    return Roster("simulated", "127.0.0.1", 18000, tuple(entries))


# --- Flower


def client_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        context.node_config["socket"] = str(Path(os.environ[SOCKETS]) / f"{number}.sock")
        return shim.train(msg, context)

    return app


class TimedPost(FlowerPost):
    """Sends letters as FlowerPost does, and keeps what each exchange took."""

    times: list[dict[str, Any]]

    def exchange(self, requests: Mapping[str, bytes]) -> Replies:
        start = time.monotonic()
        replies = super().exchange(requests)
        self.times.append(
            {"sites": len(requests), "seconds": round(time.monotonic() - start, 3), "failed": len(replies.failed)}
            | {"silent": len(replies.silent), "bytes_down": sum(map(len, requests.values()))}
            | {"bytes_up": sum(map(len, replies.answered.values()))}
        )
        return replies


def simulated(place: Path, roster: Roster, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the job in Flower's simulation; return the times of its exchanges."""
    from flwr.simulation import run_simulation

    times: list[dict[str, Any]] = []
    out, app = place / "runs", place / "app"
    app.mkdir()
    (app / "spec.toml").write_text("".join(f"{k} = {to_toml(v)}\n" for k, v in keys(asked.sites, asked.rounds).items()))
    serving = ServerApp()

    @serving.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        end = time.monotonic() + 60
        while len(list(grid.get_node_ids())) < asked.sites and time.monotonic() < end:
            time.sleep(0.2)
        post = TimedPost(grid, roster, asked.timeout)
        post.times = times
        server.serve(post, roster, app, out, {"name": "flower", "wait": 1.0})

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    resources["init_args"] = {"num_cpus": asked.actors, "include_dashboard": False, "log_to_driver": False}
    run_simulation(serving, client_app(), num_supernodes=asked.sites, backend_config=resources)
    return times


# --- what came of it


def weights(path: Path) -> torch.Tensor:
    tensors = load_file(path / "public" / "model.safetensors")
    return torch.cat([value.reshape(-1) for _, value in sorted(tensors.items())]).double()


def owner_seconds(path: Path) -> list[float]:
    (file,) = (path / "private").glob("records*.jsonl")
    return [json.loads(line)["seconds"] for line in file.read_text().splitlines()]


def by_simulator(place: Path, asked: argparse.Namespace, name: str, **more: Any) -> float:
    """Run the same run file in the simulator; return the seconds that it took."""
    os.environ["SORDINO_HOME"] = str(place / "home-simulator")
    torch.set_num_threads(1)
    wanted = keys(asked.sites, asked.rounds) | {"out": str(place / "runs"), "name": name} | more
    began = time.monotonic()
    run.execute(build.from_spec(specs.from_dict(wanted)), own_model=False)
    return round(time.monotonic() - began, 1)


def difference(place: Path, one: str, two: str) -> float:
    """Return the largest difference of two models, relative to the largest weight."""
    a, b = weights(place / "runs" / one), weights(place / "runs" / two)
    return float((a - b).abs().max() / b.abs().max())


def result_of(place: Path, times: list[dict[str, Any]], asked: argparse.Namespace) -> dict[str, Any]:
    """Run the simulator and return what is printed and kept.

    One client after the other, the simulator computes what sites compute, in the same order. All clients of a round
    together, it adds the same numbers in another order, and rounding errors grow from round to round.
    """
    seconds = {"simulator": by_simulator(place, asked, "simulator")}
    seconds["simulator, a client at a time"] = by_simulator(place, asked, "alone", blocks=asked.sites)
    rounds = times[2:]  # after hello and open
    return {
        "exchanges": times,
        "round_seconds": [round(s, 3) for s in owner_seconds(place / "runs" / "flower")],
        "simulator_round_seconds": [round(s, 3) for s in owner_seconds(place / "runs" / "simulator")],
        "failures": sum(t["failed"] + t["silent"] for t in rounds),
        "answers": sum(t["sites"] for t in rounds),
        "seconds": seconds,
        "difference": {
            "sites, simulator with a client at a time": difference(place, "flower", "alone"),
            "sites, simulator": difference(place, "flower", "simulator"),
            "simulator, simulator with a client at a time": difference(place, "simulator", "alone"),
        },
        "parameters": len(weights(place / "runs" / "flower")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=LOAD.clients)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2, help="that hold the sites")
    parser.add_argument("--actors", type=int, default=2, help="of Ray")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds to wait for one exchange")
    parser.add_argument("--json", type=Path, help="file for the measurements")
    asked = parser.parse_args()
    memory, place = Memory(), Path(tempfile.mkdtemp(prefix="sordino-"))
    os.environ[SOCKETS] = str(place)
    roster, spawn = roster_of(place, asked.sites), multiprocessing.get_context("spawn")
    end, ready = spawn.Event(), [spawn.Event() for _ in range(asked.processes)]
    shares = [range(k, asked.sites, asked.processes) for k in range(asked.processes)]
    holders = [
        spawn.Process(target=hold, args=(place, roster, share, event, end), daemon=True)
        for share, event in zip(shares, ready, strict=True)
    ]
    try:
        for holder in holders:
            holder.start()
        if not all(event.wait(120) for event in ready):
            raise SystemExit("the sites did not start")
        began = time.monotonic()
        times = simulated(place, roster, asked)
        seconds = round(time.monotonic() - began, 1)
        result = result_of(place, times, asked)
        result["seconds"]["flower, with its start"] = seconds
        result["peak_mb"] = memory.peak_mb()
    finally:
        end.set()
        for holder in holders:
            holder.join(10)
        shutil.rmtree(place, ignore_errors=True)
    command = "python benchmarks/flower_simulation.py " + " ".join(sys.argv[1:])
    if asked.json:
        asked.json.write_text(json.dumps({"command": command} | result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "exchanges"}, indent=1))
    if result["difference"]["sites, simulator with a client at a time"] > CLOSE:
        raise SystemExit("the models differ")


if __name__ == "__main__":
    main()
