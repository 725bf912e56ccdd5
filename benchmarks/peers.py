"""Seconds a round of a peer takes, on the same workload and the same cores.

    python benchmarks/peers.py --peer flower --workload W1      run by the peers' own Python, see README.md

flower   W1: simulation, clients with Opacus; W2: simulation, server-side fixed clipping
pfl      W1: simulated backend with Opacus as its local optimiser; W2: its central Gaussian mechanism
opacus   W1: no framework, Opacus in a loop over clients
torch    no framework; W1: no privacy either; W2: clipped updates, central noise
limit    forward and backward alone, in batches of the workload (`limit-wide`: of 600 records)

Each uses one thread in each of `--processes` processes. Prints one JSON line.
"""

import argparse
import random

import torch
from common import WORKLOADS, Clock, Enough, Memory, answer, arguments, by_client, cnn
from peer_clients import CLIP, NOISE, Limit, Opacus, Sgd, clip

PEERS = ("flower", "pfl", "opacus", "torch", "limit", "limit-wide")


def work(pipe, peer: str, workload: str) -> None:
    """A process: parameters and client numbers in, the sum of their updates out."""
    torch.set_num_threads(1)
    load = WORKLOADS[workload]
    if peer.startswith("limit"):
        batch = load.batch if peer == "limit" else 600
        limit = Limit(batch)
    else:
        x, y = by_client(load)
        client = Opacus(load.batch) if peer == "opacus" else Sgd(load.batch)
    while (task := pipe.recv()) is not None:
        params, ids = task
        total = torch._foreach_mul(params, 0)
        if peer.startswith("limit"):
            limit.run(len(ids) * load.records // batch)
        else:
            for i in ids:
                update = client(params, x[i], y[i])
                torch._foreach_add_(total, clip(update) if workload == "W2" else update)
        pipe.send(total)


def loop(args: argparse.Namespace, clock: Clock) -> None:
    """Rounds over a few processes, by pipes."""
    context, load, pipes = torch.multiprocessing.get_context("spawn"), WORKLOADS[args.workload], []
    for _ in range(args.processes):
        here, there = context.Pipe()
        context.Process(target=work, args=(there, args.peer, args.workload), daemon=True).start()
        pipes.append(here)
    params = [p.detach() for p in cnn().parameters()]
    enough, rng = Enough(args), random.Random(0)
    while not enough(clock):
        ids = rng.sample(range(load.clients), load.cohort)
        for i, pipe in enumerate(pipes):
            pipe.send((params, ids[i :: args.processes]))
        for total in [pipe.recv() for pipe in pipes]:
            torch._foreach_add_(params, total, alpha=1 / load.cohort)
        if args.workload == "W2" and args.peer == "torch":
            for p in params:
                p.add_(torch.randn_like(p), alpha=CLIP * NOISE / load.cohort)
        clock.tick()
    for pipe in pipes:
        pipe.send(None)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--peer", default="flower", choices=PEERS)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    if args.peer == "opacus" and args.workload == "W2":
        parser.error("opacus is for W1: W2 has no per-record clipping.")
    torch.set_num_threads(1)
    if args.peer == "pfl":
        import peer_pfl

        return peer_pfl.main(args)
    memory, clock, load = Memory(), Clock(args.warmup), WORKLOADS[args.workload]
    if args.peer == "flower":
        import peer_flower

        peer_flower.run(args, clock)
    else:
        loop(args, clock)
    found = clock.summary(load.cohort * load.records)
    answer(what=args.peer, workload=args.workload, **found, processes=args.processes, peak_mb=memory.peak_mb())
    return None


if __name__ == "__main__":
    main()
