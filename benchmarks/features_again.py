"""Compute the runs of a paper's figure that use fixed features again, and keep its other runs.

    python benchmarks/features_again.py run 002/fig4c again.csv      # those runs, as lines of a CSV file; wants a GPU
    python benchmarks/features_again.py write 002/fig4c again.csv    # table, picture and CSV file in docs/results

For features whose constants have changed: as `sordino reproduce`, without the networks, which did not change and take
most of the time.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

from sordino.papers import page, pictures
from sordino.papers import run as running
from sordino.papers.base import Experiment, Outcome, Trial

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FORM = "features"


def key(experiment: Experiment, line: dict[str, str]) -> tuple[str, ...]:
    return line["row"], line[experiment.x.replace(" ", "_")], line["form"], line["seed"]


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run(experiment: Experiment, path: Path, jobs: int) -> None:
    trials = [(trial, cell) for trial, cell in running.cells(experiment, 1.0, {}) if trial.form == FORM]
    with tempfile.TemporaryDirectory() as out:
        folder = running.open_folder(Path(out), experiment, 1.0, trials)
        try:
            failures = running.execute(folder, trials, jobs, lambda news: None, None)
        finally:
            folder.close()
        found = running.outcomes(running.place(Path(out), experiment), trials)
        path.write_text(page.csv(experiment, found), encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
    if failures:
        raise SystemExit("\n".join(f"failed: {name}: {reason}" for name, reason in failures.items()))


def outcome(trial: Trial, line: dict[str, str]) -> Outcome:
    """What a page needs of a run, from its line of the CSV file."""
    honest = None if line["honest_epsilon"] == "infinite" else float(line["honest_epsilon"])
    claimed = {"epsilon": float(line["claimed_epsilon"])} if line["claimed_epsilon"] else None
    result: dict[str, Any] = {"accuracy": float(line["score"]) / 100, "rounds": int(line["rounds"]), "claim": claimed}
    records = [{"bytes_up": int(line["bytes_up"]), "seconds": float(line["seconds"])}]
    return Outcome(trial, result | {"guarantee": {"epsilon": honest}}, records)


def write(experiment: Experiment, path: Path, results: Path = RESULTS) -> None:
    text, picture, numbers, _ = page.files(results, experiment)
    known = {key(experiment, line): line for file in (numbers, path) for line in lines(file)}
    found = []
    for trial in experiment.trials(1.0):
        line = known.get((trial.row, str(trial.x), trial.form, str(trial.seed)))
        if line is not None:
            found.append(outcome(trial, line))
    pictures.draw(picture, experiment, found)
    numbers.write_text(page.csv(experiment, found), encoding="utf-8")
    how = page.Provenance(f"sordino reproduce {experiment.name}", wanted=len(found))
    part = page.section(experiment, found, how, f"{picture.parent.name}/{picture.name}")
    page.put(text, experiment, part, running.PAPERS[text.stem])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["run", "write"])
    parser.add_argument("experiment")
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    experiment = running.find(asked.experiment)
    if asked.work == "run":
        run(experiment, asked.file, asked.jobs)
    else:
        write(experiment, asked.file)


if __name__ == "__main__":
    main()
