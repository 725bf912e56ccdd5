"""Seconds a round of Sordino takes, through the real loop.

    python benchmarks/rounds.py --workload W1 --method dp-sgd --beside none
    python benchmarks/rounds.py --workload W2 --method dp-fedavg

A round is all of it: draw, pay (the ledger is synchronised to disk), train, merge, account, record; there is no
test data. Cohorts have a fixed size, so that every round has as much to do as the next and as a peer's. Rounds of
`--beside` take turns with those of `--method` in the same process. Prints one JSON line.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import WORKLOADS, Clock, Enough, Memory, answer, arguments, data

from sordino.data.clients import ArrayClients
from sordino.ledger.ledger import Ledger
from sordino.models.cnn import cnn
from sordino.run_folder.folder import RunFolder
from sordino.runs import build, exactness, loop, paying
from sordino.spec import spec


def endless(job: build.Job, out: str) -> Iterator[Any]:
    """The rounds of a job in a run folder of its own."""
    folder = RunFolder.create(out, None)
    folder.lock()
    folder.write_json("ledger.json", {})
    book = Ledger(folder.path / "ledger.sqlite")
    pages = book.open_job("benchmark", "", paying.plan_charge(job), job.plan.rounds, job.plan.participations, True)
    try:
        yield from loop.run(job, folder, pages, loop.begin(job), 0)
    finally:
        book.close()
        folder.close()


def job(method: str, clients: Any, **keys: Any) -> build.Job:
    keys = {"rounds": 1000, "epsilon": 8.0, "learning_rate": 0.05, "local_epochs": 1.0, "seed": 0} | keys
    torch.manual_seed(0)
    return build.build(spec.from_dict(keys | {"method": method}), cnn((1, 28, 28), 10), clients)


def _repeat(t: torch.Tensor, records: int) -> torch.Tensor:
    return t if len(t) == records else t[torch.arange(records) % len(t)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--method", default="dp-sgd")
    parser.add_argument("--beside", help="another method, whose rounds take turns with these")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--compile", action="store_true", help="on a GPU: steps that come often")
    parser.add_argument("--clients-per-round", type=int)
    parser.add_argument("--clients", type=int, help="another number of clients; their records repeat")
    parser.add_argument("--secure", action="store_true", help="in secure mode")
    parser.add_argument("--float-noise", action="store_true", help="in secure mode: floating-point noise, not exact")
    args = parser.parse_args()
    load, memory = WORKLOADS[args.workload], Memory()
    load = replace(load, clients=args.clients or load.clients)
    cohort = args.clients_per_round or load.cohort
    keys = {
        "client_sampling": "fixed",
        "client_rate": cohort / load.clients,
        "batch_size": load.batch,
        "device": args.device,
        "compile": args.compile,
    }
    if args.secure:
        keys |= {"mode": "secure", "seed": None}
    if args.float_noise:
        exactness.of_run = lambda *_: None
    clients = ArrayClients(*(_repeat(t, load.clients * load.records) for t in data()), [load.records] * load.clients)
    names = [args.method] + ([args.beside] if args.beside else [])
    with tempfile.TemporaryDirectory() as out:
        runs = {name: endless(job(name, clients, **keys), str(Path(out) / name)) for name in names}
        clocks = {name: Clock(args.warmup) for name in names}
        enough = Enough(args)
        while not all(enough(clock) for clock in clocks.values()):
            for name in names:
                clocks[name].start()
                next(runs[name])
                clocks[name].tick()
        for run in runs.values():
            run.close()
    found = {name: clocks[name].summary(cohort * load.records) for name in names}
    fields = {"what": "sordino", "workload": args.workload, "method": args.method} | found[args.method]
    if args.beside:
        ratio = float(fields["s_per_round"]) / float(found[args.beside]["s_per_round"])
        fields |= {"beside": {"method": args.beside} | found[args.beside], "ratio": round(ratio, 3)}
    if args.device == "cuda":
        fields |= {"gpu": torch.cuda.get_device_name(), "gpu_mb": torch.cuda.max_memory_allocated() >> 20}
    answer(**fields, cohort=cohort, device=args.device, peak_mb=memory.peak_mb())


if __name__ == "__main__":
    main()
