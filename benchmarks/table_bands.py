"""How much accuracy noise costs on tables: the measured runs behind the bands of `sordino plan my.toml`.

    python benchmarks/table_bands.py                 # all tables, writes src/sordino/advice/files/tables.json
    python benchmarks/table_bands.py adult           # this table only; the lines of the others stay as they are
    python benchmarks/table_bands.py --table         # the file as a table, and how well its bands predict

Every line is the mean over SEEDS runs of the engine with its defaults, on the public test records of a shipped table,
beside the most frequent class and logistic regression of scikit-learn without privacy on the same records.
"""

import json
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sordino.advice import case, tables
from sordino.runs import run
from sordino.runs.build import from_spec
from sordino.runs.prepare import Kept, prepare
from sordino.spec import spec

FILE = Path(__file__).parent.parent / "src" / "sordino" / "advice" / "files" / "tables.json"
DATASETS, SEEDS = ("adult", "credit-default", "breast-cancer"), 5
EPSILONS = (0.5, 1.0, 2.0, 4.0)
FEDERATIONS = ((5, "direct"), (10, "direct"), (50, "direct"), (10, "secure-sum"))
COLUMNS = ["dataset", "clients", "channel", "epsilon", "ratio", "accuracy", "majority", "without"]


def beside(dataset: str) -> tuple[float, float]:
    """Return the accuracy of the most frequent class, and of logistic regression without privacy."""
    prepared = prepare(spec.from_dict({"dataset": dataset, "clients": 5}))
    x, y = prepared.clients.x.numpy(), prepared.clients.y.numpy()
    x_test, y_test = (part.numpy() for part in prepared.test)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(x, y)
    majority = float((y_test == np.bincount(y).argmax()).mean())
    return majority, float(model.score(x_test, y_test))


def line(dataset: str, clients: int, channel: str, epsilon: float) -> tuple[float, float]:
    """Return the noise ratio of a run, and its mean accuracy over the seeds."""
    torch.set_num_threads(1)
    kept: Kept = {}
    keys = {"dataset": dataset, "clients": clients, "channel": channel, "epsilon": epsilon, "device": "cpu"}
    ratio = tables.ratio_of(case.of_spec(spec.from_dict(keys)))
    scores = []
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as out:
            wanted = spec.from_dict(keys | {"seed": seed, "out": out, "ledger": f"{out}/ledger.sqlite"})
            scores.append(run.execute(from_spec(wanted, kept), own_model=False).accuracy)
    return ratio, statistics.mean(scores)


def measure(names: list[str]) -> None:
    """Measure the lines of some tables, as many at a time as the machine has cores."""
    with ProcessPoolExecutor() as pool:
        for dataset in names:
            majority, without = pool.submit(beside, dataset).result()
            settings = [(*federation, epsilon) for federation in FEDERATIONS for epsilon in EPSILONS]
            rows = []
            jobs = [pool.submit(line, dataset, *setting) for setting in settings]
            for setting, job in zip(settings, jobs, strict=True):
                ratio, accuracy = job.result()
                figures = [round(v, 4) for v in (accuracy, majority, without)]
                rows.append([dataset, *setting, float(f"{ratio:.4g}"), *figures])
                print(rows[-1], flush=True)
            write(dataset, rows)


def write(name: str, rows: list[list]) -> None:
    """Put the lines of one table into the file, in place of those it had; lines of another origin are dropped."""
    made_by = f"benchmarks/table_bands.py: runs with the defaults of this version, means of {SEEDS} seeds"
    before = json.loads(FILE.read_text(encoding="utf-8"))
    others = [r for r in before["rows"] if r[0] != name] if before["made_by"] == made_by else []
    rows = sorted(others + rows, key=lambda r: DATASETS.index(r[0]))
    body = ",\n".join(json.dumps(row) for row in rows)
    text = json.dumps({"made_by": made_by})[:-1] + f',\n"columns": {json.dumps(COLUMNS)},\n"rows": [\n{body}\n]}}\n'
    FILE.write_text(text, encoding="utf-8")


def table() -> None:
    """Print the file as a Markdown table, and how often the band of the other tables holds a run."""
    runs = sorted(tables.measured().runs, key=lambda r: r.ratio)
    print("| noise ratio | table | clients | channel | epsilon | accuracy, % | kept of the gain, % |")
    print("| --- " * 7 + "|")
    for r in runs:
        shown = f"{r.dataset} | {r.clients} | {r.channel} | {r.epsilon:g} | {100 * r.accuracy:.1f} | {100 * r.gain:.0f}"
        print(f"| {r.ratio:.2g} | {shown} |")
    inside = total = 0
    for r in runs:
        near = [o for o in runs if r.ratio / tables.NEAR <= o.ratio <= r.ratio * tables.NEAR]
        others = [o.gain for o in near if o.dataset != r.dataset]
        if others:
            inside, total = inside + (min(others) - 0.05 <= r.gain <= max(others) + 0.05), total + 1
    print(f"\n{inside} of {total} runs lie within (5 per cent of) the band of the other tables.")


def main() -> None:
    if sys.argv[1:] == ["--table"]:
        table()
    elif unknown := [a for a in sys.argv[1:] if a not in DATASETS]:
        sys.exit(f"{__doc__}\nunknown: {unknown}; tables: {DATASETS}")
    else:
        measure(sys.argv[1:] or list(DATASETS))


if __name__ == "__main__":
    main()
