"""What federated training reaches without privacy, on the datasets and models of the papers.

    python benchmarks/without_privacy.py run mnist cifar10-10    # names below; adds to docs/results/without_privacy.csv
    python benchmarks/without_privacy.py tune cifar10-100 --rounds 60    # the same on held-out training records
    python benchmarks/without_privacy.py table    # the CSV as docs/results/without_privacy.md has it
    python benchmarks/without_privacy.py plain FOLDER shakespeare    # one .npz, for a machine without pandas

Data are found as `sordino run` finds them (SORDINO_DATA); `--from FOLDER` takes the files that `plain` made.
"""

import argparse
import csv
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.data.load import load
from sordino.runs import build, run
from sordino.spec import spec

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "without_privacy.csv"
PICTURES = {"features": "none", "optimizer": "momentum", "schedule": "cosine", "memory_gb": 60.0}
CIFAR = PICTURES | {
    "dataset": "cifar10", "model": "resnet18", "augment": "flip-crop", "weight_decay": 5e-4, "precision": "bfloat16",
    "batch_size": 50,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "mnist": PICTURES | {
        "dataset": "mnist", "model": "cnn-mnist", "clients": 50, "rounds": 40, "local_epochs": 1.0, "batch_size": 30,
        "learning_rate": 0.05,
    },
    "fashion-mnist": PICTURES | {
        "dataset": "fashion-mnist", "model": "cnn-mnist-plain", "clients": 50, "rounds": 60, "local_epochs": 1.0,
        "batch_size": 30, "learning_rate": 0.05,
    },
    "medical-mnist": PICTURES | {
        "dataset": "medical-mnist", "model": "cnn-medical", "clients": 10, "rounds": 30, "local_epochs": 1.0,
        "batch_size": 30, "learning_rate": 0.05,
    },
    "cifar10-10": CIFAR | {"clients": 10, "rounds": 100, "local_epochs": 1.0, "learning_rate": 0.1, "warmup": 3},
    "cifar10-100": CIFAR | {  # 004: 100 clients, 10 % of them a round, 2 local epochs, 400 rounds
        "clients": 100, "client_sampling": "fixed", "client_rate": 0.1, "rounds": 400, "local_epochs": 2.0,
        "learning_rate": 0.1, "warmup": 5,
    },
    "wind": {
        "dataset": "gefcom-wind", "model": "mlp", "rounds": 60, "local_epochs": 1.0, "batch_size": 128,
        "optimizer": "adam", "learning_rate": 1e-3, "schedule": "cosine",
    },
    "shakespeare": {
        "dataset": "shakespeare", "model": "lstm", "client_rate": 0.1, "rounds": 80, "local_epochs": 1.0,
        "batch_size": 10, "learning_rate": 1.47, "memory_gb": 60.0,
    },
}  # fmt: skip
SHOWN = ("accuracy", "worst_class", "worst_client", "perplexity", "rmse", "mae")


def train(name: str, folder: str | None, extra: dict[str, Any]) -> dict[str, Any]:
    wanted = {"method": "none", "mode": "research", "evaluate_every": 10, **SETTINGS[name], **extra}
    if folder is not None and (own := Path(folder) / f"{wanted['dataset']}.npz").is_file():
        wanted |= {"dataset": str(own.absolute())}
    with tempfile.TemporaryDirectory() as out:
        start = time.monotonic()
        job = build.from_spec(spec.from_dict(wanted | {"out": out, "checkpoint_seconds": 600.0}))
        ready = time.monotonic()

        def watch(record: Any) -> None:
            if record.loss is not None or record.accuracy is not None:
                print(f"{name} round {record.round}: {record.accuracy} {record.metrics}", flush=True)

        result = run.execute(job, own_model=False, watch=watch)
        seconds = time.monotonic() - ready
    figures = {"accuracy": result.accuracy, **result.metrics}
    device = torch.cuda.get_device_name() if job.device.type == "cuda" else "cpu"
    plan = job.plan
    row = {
        "setting": name, "changed": " ".join(f"{k}={v}" for k, v in extra.items()),
        "evaluated_on": result.history[-1].evaluated_on, "seed": job.spec.seed or 0,
        "clients": plan.population, "cohort": round(plan.expected_cohort), "rounds": len(result.history),
        "parameters": job.model.layout.dim, "seconds": round(seconds, 1), "prepared": round(ready - start, 1),
        "device": device,
    }  # fmt: skip
    return row | {k: round(figures[k], 4) if figures.get(k) is not None else "" for k in SHOWN}


def table() -> str:
    with RESULTS.open() as file:
        rows = list(csv.DictReader(file))
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(row.values()) + " |" for row in rows])


def plain(folder: str, names: list[str]) -> None:
    for name in names:
        data = load(name)
        arrays = {
            k: getattr(data, k) for k in ("x_train", "y_train", "x_test", "y_test", "client_train", "client_test")
        }
        small = {k: np.asarray(v) for k, v in arrays.items() if v is not None}
        if data.x_train.dtype != torch.uint8:
            small |= {k: np.asarray(data.prepare(torch.as_tensor(small[k]))) for k in ("x_train", "x_test")}
        small |= {"classes": np.array(data.classes)} if data.classes is not None else {}
        np.savez_compressed(Path(folder) / f"{name}.npz", **small)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "tune", "table", "plain"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--from", dest="folder")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any key of a run file")
    parser.add_argument("--csv", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.what == "table":
        print(table())
        return
    if asked.what == "plain":
        plain(asked.names[0], asked.names[1:])
        return
    extra: dict[str, Any] = {"rounds": asked.rounds} if asked.rounds else {}
    for pair in asked.set:
        key, _, value = pair.partition("=")
        extra[key] = tomllib.loads(f"x = {value}")["x"] if value[:1].isdigit() else value
    if asked.what == "tune":
        extra |= {"tuning": 0.1, "evaluate_on": "tuning"}
    for name in asked.names or SETTINGS:
        row = train(name, asked.folder, extra)
        fresh = not asked.csv.is_file()
        with asked.csv.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        print(row, flush=True)


if __name__ == "__main__":
    main()
