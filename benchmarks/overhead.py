"""CPU milliseconds a round takes beside its array work: a tiny model in the shape of W1.

    python benchmarks/overhead.py [--method dp-sgd] [--rounds 150]

100 clients of 60 records in 20 dimensions, 10 of them a round, 10 local steps, three outputs: what is left is the loop
itself, with draw, price, ledger, outlets, channel, merge and record. Prints one JSON line. To compare two versions of
the code, let processes of both take turns.
"""

import argparse
import statistics
import tempfile
import time

import torch
from common import answer
from rounds import endless

from sordino.data.clients import ArrayClients
from sordino.runs import build
from sordino.spec import spec

CLIENTS, RECORDS, FEATURES, CLASSES = 100, 60, 20, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="dp-sgd")
    parser.add_argument("--rounds", type=int, default=150)
    args = parser.parse_args()
    torch.set_num_threads(1)
    draw, n = torch.Generator().manual_seed(0), CLIENTS * RECORDS
    x, y = torch.randn(n, FEATURES, generator=draw), torch.randint(0, CLASSES, (n,), generator=draw)
    keys = {"client_sampling": "fixed", "client_rate": 0.1, "batch_size": 6, "device": "cpu", "rounds": 1000, "seed": 0}
    keys |= {"epsilon": 8.0, "learning_rate": 0.05, "local_epochs": 1.0, "method": args.method}
    torch.manual_seed(0)
    made = build.build(
        spec.from_dict(keys), torch.nn.Linear(FEATURES, CLASSES), ArrayClients(x, y, [RECORDS] * CLIENTS)
    )
    with tempfile.TemporaryDirectory() as out:
        rounds, seconds = endless(made, out), []
        for _ in range(10):
            next(rounds)
        for _ in range(args.rounds):
            start = time.process_time()
            next(rounds)
            seconds.append(1000 * (time.process_time() - start))
        rounds.close()
    quarter = sorted(seconds)[len(seconds) // 4]
    answer(
        what="overhead", method=args.method, ms_per_round=round(statistics.median(seconds), 2), p25=round(quarter, 2)
    )


if __name__ == "__main__":
    main()
