"""Compute some forms of a paper's figure again, and keep its other runs as they stand in docs/results.

    python benchmarks/forms_again.py run 002/fig4d --forms printed,reference --jobs 8 --minutes 8   # resumes
    python benchmarks/forms_again.py write 002/fig4d --forms printed,reference    # table, picture and CSV file

For changes that touch one form alone: the reading of a paper touches no sound run, and new constants of fixed features
touch no network. Runs that docs/results does not have are computed in any form. The runs lie where
`sordino reproduce --out` keeps them.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

from sordino.papers import curves, page, pictures
from sordino.papers import run as running
from sordino.papers.base import Experiment, Outcome, Trial

RESULTS = Path(__file__).parents[1] / "docs" / "results"
Key = tuple[str, ...]


def known(experiment: Experiment, forms: list[str], results: Path = RESULTS) -> dict[Key, dict[str, str]]:
    """The runs that are kept, as lines of the CSV file."""
    path = page.files(results, experiment)[2]
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    x = experiment.x.replace(" ", "_")
    return {(o["row"], o[x], o["form"], o["seed"]): o for o in lines if o["form"] not in forms}


def key(trial: Trial) -> Key:
    return trial.row, str(trial.x), trial.form, str(trial.seed)


def again(experiment: Experiment, kept: dict[Key, dict[str, str]]) -> running.Trials:
    return [(trial, cell) for trial, cell in running.cells(experiment, 1.0, {}) if key(trial) not in kept]


def run(experiment: Experiment, trials: running.Trials, out: Path, jobs: int, minutes: float) -> None:
    folder = running.open_folder(out, experiment, 1.0, trials)
    try:
        failures = running.execute(folder, trials, jobs, lambda news: None, minutes)
    except running.TimeUpError:
        print("stopped; the same command continues")
        failures = {}
    finally:
        folder.close()
    print(f"{len(running.outcomes(running.place(out, experiment), trials))} of {len(trials)} runs are finished")
    if failures:
        raise SystemExit("\n".join(f"failed: {name}: {reason}" for name, reason in failures.items()))


def outcome(trial: Trial, line: dict[str, str]) -> Outcome:
    """What a page needs of a run, from its line of the CSV file."""
    honest = None if line["honest_epsilon"] == "infinite" else float(line["honest_epsilon"])
    claimed = {"epsilon": float(line["claimed_epsilon"])} if line["claimed_epsilon"] else None
    result: dict[str, Any] = {"accuracy": float(line["score"]) / 100, "rounds": int(line["rounds"]), "claim": claimed}
    records = [{"round": int(line["rounds"]), "bytes_up": int(line["bytes_up"]), "seconds": float(line["seconds"])}]
    return Outcome(trial, result | {"guarantee": {"epsilon": honest}}, records)


def write(experiment: Experiment, kept: dict[Key, dict[str, str]], out: Path, results: Path = RESULTS) -> None:
    trials = running.cells(experiment, 1.0, {})
    new = {key(o.trial): o for o in running.outcomes(running.place(out, experiment), trials)}
    found = []
    for trial, _ in trials:
        if key(trial) in kept:
            found.append(outcome(trial, kept[key(trial)]))
        elif key(trial) in new:
            found.append(new[key(trial)])
    text, picture, numbers, drawn = page.files(results, experiment)
    if experiment.kind != "table":
        pictures.draw(picture, experiment, found)
    numbers.write_text(page.csv(experiment, found), encoding="utf-8")
    if pairs := curves.csv(experiment, found):
        drawn.write_text(pairs, encoding="utf-8")
    how = page.Provenance(f"sordino reproduce {experiment.name}", wanted=len(trials))
    shown = f"{picture.parent.name}/{picture.name}" if picture.is_file() else None
    link = f"{drawn.parent.name}/{drawn.name}" if drawn.is_file() else None
    page.put(text, experiment, page.section(experiment, found, how, shown, link), running.PAPERS[text.stem])
    print(f"{len(found)} of {len(trials)} runs, {len(kept)} of them as they stood: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["run", "write"])
    parser.add_argument("experiment")
    parser.add_argument("--forms", default="features", help="forms that are computed again, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=8.5)
    asked = parser.parse_args()
    experiment = running.find(asked.experiment)
    kept = known(experiment, asked.forms.split(","))
    if asked.work == "run":
        run(experiment, again(experiment, kept), asked.out, asked.jobs, asked.minutes)
    else:
        write(experiment, kept, asked.out)


if __name__ == "__main__":
    main()
