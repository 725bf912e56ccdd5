"""The workloads in Flower's simulation (Ray): clients as its documentation writes them."""

import argparse
import contextlib
import os
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # actors import this file

import torch
from common import WORKLOADS, Clock, Enough, by_client, cnn
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from peer_clients import CLIP, NOISE, opacus_as_documented, sgd_as_documented

client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    workload = str(message.content["config"]["workload"])
    load, number = WORKLOADS[workload], int(context.node_config["partition-id"])
    x, y = by_client(load)
    state = message.content["arrays"].to_torch_state_dict()
    local = opacus_as_documented if workload == "W1" else sgd_as_documented
    state = local(state, x[number], y[number], load.batch)
    reply = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": load.records})}
    return Message(content=RecordDict(reply), reply_to=message)


class Stop(Exception):  # noqa: N818
    """Enough rounds."""


def run(args: argparse.Namespace, clock: Clock) -> None:
    load, enough = WORKLOADS[args.workload], Enough(args)
    strategy = FedAvg(
        fraction_train=load.cohort / load.clients,
        fraction_evaluate=0.0,
        min_train_nodes=load.cohort,
        min_available_nodes=load.clients,
    )
    if args.workload == "W2":
        strategy = DifferentialPrivacyServerSideFixedClipping(
            strategy, noise_multiplier=NOISE, clipping_norm=CLIP, num_sampled_clients=load.cohort
        )

    def after_round(number: int, arrays: ArrayRecord) -> None:
        clock.tick()  # the first call, before any round, starts it
        if enough(clock):
            raise Stop

    server = ServerApp()

    @server.main()
    def serve(grid, context) -> None:
        with contextlib.suppress(Stop):
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(cnn().state_dict()),
                num_rounds=100_000,
                train_config=ConfigRecord({"workload": args.workload}),
                evaluate_fn=after_round,
            )

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=load.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": args.processes, "include_dashboard": False},
        },
    )
