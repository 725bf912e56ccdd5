"""Levels under attack: sample-level and client-level privacy against membership, inference and backdoor attacks.

    python benchmarks/levels_under_attack.py levels        # docs/results/levels.md and levels.json
    python benchmarks/levels_under_attack.py attributes    # docs/results/attributes.md and attributes.json

After Naseri, Hayes and De Cristofaro (2020), arXiv:2009.03561. 200 clients of 10 records; every run is attacked through
what its viewers saw. Prints the tables of the pages and writes all figures as JSON.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

from sordino.attacks._questions import PropertyQuestion, losses
from sordino.attacks.base import Knowledge, Targets
from sordino.core import plugin
from sordino.core.types import Batch
from sordino.core.view import View
from sordino.data.load import load
from sordino.data.sets import adult, credit_default
from sordino.red_team.attributes import Attribute, attribute, found, hidden, imputed
from sordino.red_team.malicious import Poison, Trigger, poisoned, success_rate
from sordino.runs import build
from sordino.runs.job import Job
from sordino.runs.run import execute
from sordino.spec import spec

CLIENTS, SIZE, SEEDS, AUXILIARY = 200, 10, 3, 4000
KEPT = (1, 2, 5, 10, 20, 40)  # rounds of which the server's views are attacked
RESULTS = Path(__file__).parents[1] / "docs" / "results"
SCHEMAS = {"adult": adult.SCHEMA, "credit-default": credit_default.SCHEMA}
MARK = Trigger(tuple(28 * r + c for r in range(23, 27) for c in range(23, 27)), 2.8)  # a white square in a corner
BAD = tuple(range(0, CLIENTS, 10))  # a tenth of the clients


def runs(rounds: int, rates: tuple[float, float, float], clips: tuple[float, float]) -> dict[str, dict[str, Any]]:
    """Return the compared runs by name; rates are those of none, dp-sgd and dp-fedavg, clips of the latter two."""
    plain, sample, client = ({"learning_rate": rate, "rounds": rounds} for rate in rates)
    out: dict[str, dict[str, Any]] = {"none": {"method": "none", **plain}}
    for method, keys, clip in (("dp-sgd", sample, clips[0]), ("dp-fedavg", client, clips[1])):
        for epsilon in (8.0, 2.0):
            out[f"{method}, {epsilon:g}"] = {"method": method, "epsilon": epsilon, "clip": clip, **keys}
    return out


RUNS = {
    "mnist": runs(40, (0.3, 0.5, 0.3), (1.0, 0.5)),
    "adult": runs(30, (0.5, 0.5, 0.5), (1.0, 0.3)),
    "credit-default": runs(30, (0.5, 0.5, 0.5), (1.0, 0.3)),
}
MECHANISMS = {  # of 003, Table 1
    f"udp-fl {name}, 8": {
        "method": "udp-fl", "mechanism": name, "epsilon": 8.0, "clip": 1.0, "learning_rate": 0.5, "rounds": 30
    }
    for name in ("gaussian", "laplace", "staircase")
}  # fmt: skip
WHOM = {"none": "nobody", "dp-sgd": "record, server", "dp-fedavg": "client, public", "udp-fl": "record, server"}
ROBUST = {"none": "norm-bound:0.5", "dp-sgd": "median", "dp-fedavg": "norm-bound:0.5"}


class Problem:
    """Clients with unequal class shares, twins of their records that nobody trained on, and auxiliary records."""

    def __init__(self, name: str, seed: int) -> None:
        data, draw = load(name, None), np.random.default_rng(seed)
        self.name, self.x, self.y = name, data.prepare(data.x_train), data.y_train
        self.test = data.prepare(data.x_test)[:5000], data.y_test[:5000]
        self.classes = int(data.classes or 2)
        labels = self.y.numpy()
        piles = [list(draw.permutation(np.flatnonzero(labels == c))) for c in range(self.classes)]
        rest = np.array([len(pile) for pile in piles]) / len(labels)
        inside, outside = [], []
        for _ in range(CLIENTS):
            shares = draw.dirichlet(2.0 * self.classes * rest)
            for label in draw.choice(self.classes, SIZE, p=shares):
                inside.append(piles[label].pop())
                outside.append(piles[label].pop())  # a twin with the same label
        left = draw.permutation(np.concatenate([np.array(pile) for pile in piles]))[:AUXILIARY]
        self.members, self.others = (self.batch(np.array(i), (SIZE,) * CLIENTS) for i in (inside, outside))
        self.auxiliary = self.batch(left, (AUXILIARY,))

    def batch(self, index: Any, sizes: tuple[int, ...]) -> Batch:
        at = torch.from_numpy(np.asarray(index, dtype=np.int64))
        return Batch(self.x[at], self.y[at], sizes)

    def clients(self) -> list[tuple[Tensor, Tensor]]:
        x, y = self.members.x, self.members.y
        return [(x[i : i + SIZE], y[i : i + SIZE]) for i in range(0, len(y), SIZE)]

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        if self.name == "mnist":
            return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10))
        return nn.Linear(self.x.shape[1], 2)

    def job(self, out: str, **keys: Any) -> Job:
        always = {"out": out, "device": "cpu", "evaluate_every": 10**6, "mode": "research", "checkpoint_seconds": 1e9}
        return build.build(spec.from_dict(always | keys), self.network(), self.clients(), None, self.test)


def run(problem: Problem, poison: Poison | None = None, **keys: Any) -> tuple[Job, list[View], dict[str, float]]:
    """Return the job, the views that are attacked, and accuracy and success of the backdoor."""
    seen: list[View] = []

    def keep(view: View) -> None:
        if view.round in (KEPT if view.viewer == "server" else (keys["rounds"],)):
            seen.append(view)

    with tempfile.TemporaryDirectory() as out:
        made = problem.job(out, **keys)
        job = made if poison is None else poisoned(made, poison)
        result = execute(job, own_model=True, observe=keep if poison is None else None)
    scores = {"accuracy": result.accuracy or 0.0}
    if problem.name == "mnist":  # also without a backdoor: how often the mark alone misleads
        with torch.no_grad():
            guesses = result.model(MARK.stamped(problem.test[0])).argmax(dim=1)
        scores["backdoor"] = success_rate(guesses, problem.test[1], 0)
    return made, seen, scores


def auc(inside: Any, outside: Any) -> float:
    return float(mannwhitneyu(inside, outside).statistic / len(inside) / len(outside))


def attack(problem: Problem, job: Job, seen: list[View], what: Iterable[str]) -> dict[str, float]:
    """Return the success of membership and property attacks, and of attribute attacks on the given columns."""
    public, server = ([v for v in seen if v.viewer == viewer] for viewer in ("public", "server"))
    known = Knowledge(
        job.model, problem.classes, job.plan.local, client_size=SIZE, auxiliary=problem.auxiliary
    )  # all attackers know as much
    everyone, out = tuple(range(CLIENTS)), {}
    last = [-losses(job.model, public[-1].state.params, b).numpy() for b in (problem.members, problem.others)]
    out["membership, public"] = auc(*last)
    out["client membership, public"] = auc(*(rows.reshape(CLIENTS, SIZE).mean(axis=1) for rows in last))
    align = plugin.load("attacks", "gradient-alignment")()
    rows = [align.score(server, known, Targets(b, everyone)) for b in (problem.members, problem.others)]
    out["membership, server"] = auc(*rows)
    out["found at 1 % false alarms, server"] = float((rows[0] > np.quantile(rows[1], 0.99)).mean())
    shares = plugin.load("attacks", "property-inference")().infer(server, known, PropertyQuestion(everyone))
    true = _shares(problem)
    out["class shares, server"] = float(np.abs(shares - true).sum(axis=1).mean() / 2)
    out["class shares, guess"] = float(np.abs(true.mean(axis=0) - true).sum(axis=1).mean() / 2)
    for name in what:
        out |= {f"{name}: {k}": v for k, v in attributes(problem, known, public, server, name).items()}
    return out


def _shares(problem: Problem) -> Any:
    labels = problem.members.y.reshape(CLIENTS, SIZE)
    return np.stack([np.bincount(row, minlength=problem.classes) / SIZE for row in labels.numpy()])


def attributes(
    problem: Problem, known: Knowledge, public: list[View], server: list[View], name: str
) -> dict[str, float]:
    """Return accuracies of imputation and of both attacks, on members and on others."""
    what: Attribute = attribute(SCHEMAS[problem.name], name)
    from_model = plugin.load("attacks", "attribute-from-model")()
    from_updates = plugin.load("attacks", "attribute-from-updates")()
    out = {}
    for who, batch in (("members", problem.members), ("others", problem.others)):
        question, truth = hidden(batch, tuple(range(CLIENTS)), what)
        guesses = {
            "imputation": imputed(question, problem.auxiliary, problem.classes),
            "model": from_model.infer(public, known, question),
            "updates": from_updates.infer(server, known, question),
        }
        out |= {f"{how}, {who}": found(scores, truth).accuracy for how, scores in guesses.items()}
        out[f"majority, {who}"] = float(np.bincount(truth).max() / len(truth))
    return out


def collected(name: str, what: Iterable[str], backdoors: bool, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return all figures of one dataset: a list over the seeds for every run and figure."""
    table: dict[str, dict[str, list[float]]] = {}
    compared = RUNS[name] | (more or {})
    for seed in range(SEEDS):
        problem = Problem(name, seed)
        for line, keys in compared.items():
            start = time.monotonic()
            job, seen, scores = run(problem, seed=seed, **keys)
            scores |= attack(problem, job, seen, what)
            if backdoors:
                scores |= planted(problem, seed, keys)
            for figure, value in scores.items():
                table.setdefault(line, {}).setdefault(figure, []).append(value)
            print(f"# {name}, seed {seed}, {line}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return {"settings": compared, "clients": CLIENTS, "records of a client": SIZE, "runs": table}


def planted(problem: Problem, seed: int, keys: dict[str, Any]) -> dict[str, float]:
    """Return accuracy and success of a backdoor by data alone, by boosted updates, and under a robust merge."""
    data = Poison("backdoor", BAD, trigger=MARK, target=0, honest_code=True)
    boosted = replace(data, honest_code=False, boost=5.0)
    robust = {"merge": ROBUST[keys["method"]]}
    ways = {"data": (data, {}), "boosted": (boosted, {}), "boosted, robust": (boosted, robust)}
    out = {}
    for way, (poison, more) in ways.items():
        scores = run(problem, poison, seed=seed, **keys, **more)[2]
        out |= {f"backdoor by {way}": scores["backdoor"], f"accuracy, backdoor by {way}": scores["accuracy"]}
    return out


def show(title: str, table: dict[str, Any], columns: dict[str, str]) -> None:
    """Print a table of means in the form of a page; columns are headings by figure."""
    print(
        f"\n{title}\n\n| run | protects, from | "
        + " | ".join(columns.values())
        + " |\n|"
        + " --- |" * (len(columns) + 2)
    )
    for line, figures in table["runs"].items():
        cells = [_cell(figures.get(figure)) for figure in columns]
        print(f"| {line} | {WHOM[line.partition(',')[0].split()[0]]} | " + " | ".join(cells) + " |")


def _cell(values: list[float] | None) -> str:
    if values is None:
        return "-"
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def levels() -> None:
    figures = {"mnist": collected("mnist", (), True), "adult": collected("adult", ("sex",), False)}
    (RESULTS / "levels.json").write_text(json.dumps(figures, indent=1) + "\n")
    common = {
        "accuracy": "accuracy",
        "membership, public": "records, public (AUC)",
        "client membership, public": "clients, public (AUC)",
        "membership, server": "records, server (AUC)",
        "found at 1 % false alarms, server": "found at 1 % false alarms",
        "class shares, server": "class shares, server (error)",
    }
    for name, table in figures.items():
        show(f"{name}: privacy", table, common)
    ways = ("data", "boosted", "boosted, robust")
    columns = {f"{what}backdoor by {way}": f"{what}{way}" for way in ways for what in ("", "accuracy, ")}
    show("mnist: backdoor", figures["mnist"], {"backdoor": "no backdoor"} | columns)
    guess = statistics.mean(figures["mnist"]["runs"]["none"]["class shares, guess"])
    print(f"\nThe mean make-up as a guess for everybody: {guess:.3f} (mnist)")


def attribute_pages() -> None:
    asked = {"adult": ("sex", "marital-status"), "credit-default": ("SEX", "EDUCATION")}
    figures = {name: collected(name, what, False, MECHANISMS) for name, what in asked.items()}
    (RESULTS / "attributes.json").write_text(json.dumps(figures, indent=1) + "\n")
    for name, table in figures.items():
        for what in asked[name]:
            columns = {f"{what}: {how}, {who}": f"{how}, {who}" for how in ("imputation", "model", "updates") for who in ("members", "others")}  # fmt: skip # noqa: E501
            show(f"{name}, {what}", table, {"accuracy": "accuracy"} | columns)


if __name__ == "__main__":
    commands = {"levels": levels, "attributes": attribute_pages}
    if sys.argv[1:2] not in ([name] for name in commands):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    commands[sys.argv[1]]()
