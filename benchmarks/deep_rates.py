"""The papers' ideas against plain DP-SGD in convolutional networks, each with its own best learning rate.

    python benchmarks/deep_rates.py choose --out cells.jsonl     # learning rates on 5,000 held-out training records
    python benchmarks/deep_rates.py confirm --out cells.jsonl    # the best of each on the test set, 5 seeds
    python benchmarks/deep_rates.py confirm --out cells.jsonl --minutes 8 --jobs 4 --only mnist cifar10

Epsilon and delta = 1e-5 are the total for a record that is added or removed, against a curious server. Every client
computes one full-batch step a round, and the last model counts, not an average. MNIST has the network, the rounds and
the clip of 002 (src/sordino/papers/xue.py); CIFAR-10 comes from the folder SORDINO_DATA.

Finished runs are lines of the file --out, and a further call makes the missing ones only. `choose` never reads a test
record; `confirm` takes its learning rates from the lines of `choose`. Both end with their tables in Markdown. On a GPU
where there is one.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import sordino
from sordino.core import plugin
from sordino.core.rng import Stream
from sordino.data import partition
from sordino.data.clients import ArrayClients
from sordino.data.load import load
from sordino.report.summary import Spread

HELD_OUT, SEEDS, DELTA = 5_000, 5, 1e-5
METHODS = ("dp-sgd", "adaptive-noise", "fedsdp")
SAME = "udp-fl"  # picks Gaussian noise, and then is dp-sgd number for number: one run shows it
PRIVATE = 8  # records of this class and the later ones have private attributes, for fedsdp


@dataclass(frozen=True)
class Task:
    dataset: str
    model: str
    clients: int
    rounds: int
    clip: float
    epsilons: tuple[float, ...]
    rates: tuple[float, ...]


TASKS = {
    "mnist": Task("mnist", "cnn-mnist-plain", 50, 120, 2.0, (0.5, 2.0), tuple(2.0**k for k in range(-5, 3))),
    "cifar10": Task("cifar10", "cnn-cifar", 10, 200, 1.0, (8.0,), tuple(2.0**k for k in range(-3, 5))),
    "mnist-700": Task("mnist", "cnn-mnist-plain", 700, 120, 2.0, (0.5,), tuple(2.0**k for k in range(-7, 1))),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    step: str  # choose or confirm
    task: str
    epsilon: float
    method: str
    rate: float
    seed: int
    scale: float  # share of the records and rounds


Found = dict[Cell, dict[str, Any]]  # what the finished runs left


@lru_cache(maxsize=1)
def records(dataset: str, step: str, scale: float) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return training records and labels, and what accuracies are measured on."""
    data = load(dataset)
    order = torch.from_numpy(Stream.research(99).permutation(len(data.y_train)))
    out, rest = order[:HELD_OUT], order[HELD_OUT:] if step == "choose" else order
    rest = rest[: round(scale * len(rest))]
    x, y = data.prepare(data.x_train[rest]), data.y_train[rest]
    if step == "choose":
        return x, y, (data.prepare(data.x_train[out]), data.y_train[out])
    return x, y, (data.prepare(data.x_test), data.y_test)


def one(cell: Cell, threads: int) -> dict[str, Any]:
    """Return the accuracy of a run in %, what identifies its model, and how long it took."""
    torch.set_num_threads(threads)
    task, begun = TASKS[cell.task], time.monotonic()
    x, y, test = records(task.dataset, cell.step, cell.scale)
    parts = partition.iid(len(x), task.clients, Stream.research(cell.seed).at("partition"))
    tags: dict[str, Any] = {}
    if cell.method == "fedsdp":
        tags["private_data"] = [(y[part] >= PRIVATE).long() for part in parts]
    torch.manual_seed(cell.seed)
    module = plugin.load("models", task.model)(tuple(x.shape[1:]), 10)
    with tempfile.TemporaryDirectory() as out:
        result = sordino.train(
            module, ArrayClients.split(x, y, parts), test=test, method=cell.method, epsilon=cell.epsilon, delta=DELTA,
            rounds=max(2, round(cell.scale * task.rounds)), learning_rate=cell.rate, clip=task.clip, seed=cell.seed,
            out=out, evaluate_every=10**6, checkpoint_seconds=1e9, **tags,
        )  # fmt: skip
    weights = torch.cat([p.detach().cpu().flatten() for p in result.model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]
    seconds = round(time.monotonic() - begun, 1)
    return {"accuracy": 100 * (result.accuracy or 0.0), "model": digest, "seconds": seconds}


def finished(out: Path) -> Found:
    """Return the runs of a file of lines; a line that was not written to its end is left out."""
    found: Found = {}
    for line in out.read_text().splitlines() if out.exists() else []:
        try:
            row = json.loads(line)
            found[Cell(**row["cell"])] = row["result"]
        except (ValueError, KeyError, TypeError):
            continue
    return found


def best(found: Found, task: str, epsilon: float, method: str, scale: float) -> float | None:
    """Return the best learning rate of `choose`, or None if some of its runs are missing."""
    cells = list(grid(task, epsilon, method, scale))
    if not all(cell in found for cell in cells):
        return None
    return max(cells, key=lambda cell: float(found[cell]["accuracy"])).rate


def grid(task: str, epsilon: float, method: str, scale: float) -> Iterator[Cell]:
    """Yield the runs of `choose` for one method."""
    for rate in TASKS[task].rates:
        yield Cell("choose", task, epsilon, method, rate, 0, scale)


def lines_of(tasks: list[str]) -> Iterator[tuple[str, float, str]]:
    """Yield task, epsilon and method of every line of the tables."""
    for task in tasks:
        for epsilon in TASKS[task].epsilons:
            for method in METHODS:
                yield task, epsilon, method


def wanted(step: str, tasks: list[str], found: Found, scale: float) -> list[Cell]:
    """Return the runs of a step."""
    if step == "choose":
        return [cell for line in lines_of(tasks) for cell in grid(*line, scale)]
    cells = []
    for task, epsilon, method in lines_of(tasks):
        rate = best(found, task, epsilon, method, scale)
        if rate is None:
            print(f"{task}, epsilon {epsilon:g}, {method}: `choose` is not finished")
            continue
        cells += [Cell("confirm", task, epsilon, method, rate, seed, scale) for seed in range(SEEDS)]
        if method == "dp-sgd":
            cells.append(Cell("confirm", task, epsilon, SAME, rate, 0, scale))
    return cells


def work(cells: list[Cell], out: Path, jobs: int, minutes: float) -> None:
    """Make runs, several at once, and write each to the file; start none that could end too late."""
    begun, longest, todo = time.monotonic(), 0.0, list(reversed(cells))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    running: dict[Future[dict[str, Any]], tuple[Cell, float]] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool, out.open("a") as file:
        while todo or running:
            late = time.monotonic() - begun + longest > 60 * minutes
            while todo and not late and len(running) < jobs:
                cell = todo.pop()
                running[pool.submit(one, cell, threads)] = cell, time.monotonic()
            if not running:
                print(f"the time is over, {len(todo)} runs are left: call again")
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell, started = running.pop(future)
                longest = max(longest, time.monotonic() - started)
                if (error := future.exception()) is not None:
                    print(f"{cell}: {type(error).__name__}: {error}", flush=True)
                    continue
                result = future.result()
                file.write(json.dumps({"cell": asdict(cell), "result": result}) + "\n")
                file.flush()
                print(f"{time.monotonic() - begun:.0f} s: {cell} {result}", flush=True)


def show_choice(tasks: list[str], found: Found, scale: float) -> None:
    """Print the accuracies on held-out training records."""
    for task in tasks:
        heads = [task, "method", *(f"rate {r:g}" for r in TASKS[task].rates)]
        print(f"\n| {' | '.join(heads)} |\n|" + " --- |" * len(heads))
        for _, epsilon, method in lines_of([task]):
            shown = [f"{found[c]['accuracy']:.2f}" if c in found else "" for c in grid(task, epsilon, method, scale)]
            print(f"| epsilon {epsilon:g} | `{method}` | {' | '.join(shown)} |")


def show_test(cells: list[Cell], found: Found) -> None:
    """Print the accuracies on the test set, with the standard deviation over seeds, and what udp-fl reaches."""
    print("\n| task | epsilon | method | learning rate | accuracy % | difference to `dp-sgd` |\n|" + " --- |" * 6)
    done = [cell for cell in cells if cell in found]
    for line in dict.fromkeys((c.task, c.epsilon, c.method, c.rate) for c in done if c.method != SAME):
        task, epsilon, method, rate = line
        scores = {c.seed: found[c]["accuracy"] for c in done if (c.task, c.epsilon, c.method) == line[:3]}
        plain = {c.seed: found[c]["accuracy"] for c in done if (c.task, c.epsilon, c.method) == (*line[:2], "dp-sgd")}
        gain = Spread.of(scores[seed] - plain[seed] for seed in scores if seed in plain)
        spread = Spread.of(scores.values())
        lead = "" if method == "dp-sgd" else f"{gain.mean:+.2f} ± {gain.deviation:.2f}"
        grid_ends = TASKS[task].rates[0], TASKS[task].rates[-1]
        edge = " (end of the grid)" if rate in grid_ends else ""
        print(
            f"| {task} | {epsilon:g} | `{method}` | {rate:g}{edge} | {spread.mean:.2f} ± {spread.deviation:.2f} "
            f"({spread.n}) | {lead} |"
        )
    for cell in done:
        twin = Cell(**asdict(cell) | {"method": "dp-sgd"})
        if cell.method == SAME and twin in found:
            same = "the same model" if found[cell]["model"] == found[twin]["model"] else "another model"
            pair = f"{found[cell]['accuracy']:.2f} and {found[twin]['accuracy']:.2f} %"
            print(f"\n{cell.task}, epsilon {cell.epsilon:g}, seed 0: `{SAME}` and `dp-sgd` reach {pair}: {same}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("choose", "confirm"))
    parser.add_argument("--out", type=Path, required=True, help="file of the finished runs, JSON lines")
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS), help="tasks, default: all")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--minutes", type=float, default=1e9, help="no run starts that could end later than this")
    parser.add_argument("--scale", type=float, default=1.0, help="share of records and rounds, to try the script")
    how = parser.parse_args()
    how.out.parent.mkdir(parents=True, exist_ok=True)
    found = finished(how.out)
    cells = wanted(how.step, how.only, found, how.scale)
    missing = [cell for cell in cells if cell not in found]
    if missing:
        work(missing, how.out, how.jobs, how.minutes)
        found = finished(how.out)
    took = [result["seconds"] for cell, result in found.items() if cell in set(cells)]
    print(f"\n{len(took)} of {len(cells)} runs are finished, {mean(took) if took else 0:.0f} seconds each")
    if how.step == "choose":
        show_choice(how.only, found, how.scale)
    else:
        show_test(cells, found)


if __name__ == "__main__":
    main()
