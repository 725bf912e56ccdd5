"""Time and size of a report, by the number of rounds.

    python benchmarks/report.py [RUN] [--rounds 100 1000 10000] [--for owner]
    python benchmarks/report.py RUN RUN ... --as-they-are

The records of RUN, a finished run (without it: the default run of 50 rounds on the embedded records, made here), are
repeated until there are so many rounds, with other figures in each, in the form in which a run writes them; its
noise grows so that the total stays. Prints one JSON line a report: seconds of the whole command, of reading, of the
sections and of the page, and megabytes of the page.
"""

import argparse
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import answer

from sordino.report.page import page
from sordino.report.reading import read_run
from sordino.report.run.report import document

COMMAND = str(Path(sys.executable).with_name("sordino"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--for", dest="audience", choices=("public", "owner"), default="public")
    parser.add_argument("--as-they-are", action="store_true", help="report every RUN with the rounds that it has")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = args.runs or [_default(Path(folder))]
        if args.as_they_are:
            for run in runs:
                measure(run, args.audience, Path(folder))
            return
        for rounds in args.rounds:
            measure(longer(runs[0], rounds, Path(folder) / f"rounds-{rounds}"), args.audience, Path(folder))


def _default(folder: Path) -> Path:
    command = [COMMAND, "run", "--name", "default", "--out", str(folder), "--device", "cpu", "--seed", "0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "default"


def measure(run: Path, audience: str, folder: Path) -> None:
    """Print the time and the size of the report of a run."""
    command = [COMMAND, "report", str(run), "--for", audience, "--out", str(folder / "page.html")]
    whole = min(_seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)) for _ in range(3))
    start = time.perf_counter()
    records = read_run(run, audience)  # type: ignore[arg-type]
    read = time.perf_counter()
    made = document(records)
    sections = time.perf_counter()
    text = page(made)
    done = time.perf_counter()
    answer(
        what="report", run=run.name, audience=audience, rounds=len(records.rounds), charts=len(list(made.charts())),
        seconds=round(whole, 2), read=round(read - start, 2), sections=round(sections - read, 2),
        page=round(done - sections, 2), megabytes=round(len(text.encode()) / 1e6, 2),
    )  # fmt: skip


def _seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def longer(run: Path, rounds: int, out: Path) -> Path:
    """Return a copy of a finished run with so many rounds."""
    shutil.copytree(run, out)
    public, private = out / "public", out / "private"
    lines = [json.loads(line) for line in (public / "records.jsonl").read_text().splitlines()]
    before = len(lines)
    spread = random.Random(0)
    with (public / "records.jsonl").open("w") as file:
        for r in range(1, rounds + 1):
            record = lines[(r - 1) * before // rounds] | {"round": r}
            for key in ("loss", "accuracy"):
                if record[key] is not None:
                    record[key] *= 1 - 0.02 * spread.random()
            record["metrics"] = {k: v * (1 - 0.02 * spread.random()) for k, v in (record["metrics"] or {}).items() if v}
            record["epsilon"] = {
                k: v if v is None else v * (r / rounds * before / (1 + (r - 1) * before // rounds)) ** 0.5
                for k, v in record["epsilon"].items()
            }
            file.write(json.dumps(record) + "\n")
    owners = [json.loads(line) for line in (private / "records.jsonl").read_text().splitlines()]
    with (private / "records.jsonl").open("w") as file:
        for r in range(1, rounds + 1):
            file.write(json.dumps(owners[(r - 1) * len(owners) // rounds] | {"round": r}) + "\n")
    for name in ("result.json", "plan.json", "accounting.json"):
        path = public / name
        path.write_text(json.dumps(_stretched(json.loads(path.read_text()), before, rounds)))
    spec = (public / "spec.toml").read_text()
    (public / "spec.toml").write_text(spec.replace(f"\nrounds = {before}\n", f"\nrounds = {rounds}\n"))
    return out


def _stretched(data, before: int, rounds: int):
    """Return record files with another number of rounds, and so much more noise in each that the total stays."""
    if isinstance(data, dict):
        out = {k: _stretched(v, before, rounds) for k, v in data.items()}
        for key in ("round", "rounds", "count"):
            if isinstance(out.get(key), int):
                out[key] = max(1, round(out[key] * rounds / before))
        if isinstance(out.get("noise_multiplier"), float):
            out["noise_multiplier"] *= math.sqrt(rounds / before)
        return out
    return [_stretched(v, before, rounds) for v in data] if isinstance(data, list) else data


if __name__ == "__main__":
    main()
