"""Accuracy of the default run in secure mode, with exact or with floating-point noise.

    python benchmarks/secure_accuracy.py [--float-noise] [--runs 4]

Runs in secure mode have no seed, so that every run draws its own noise. Prints one JSON line.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile

from common import answer

from sordino.cli.main import main as sordino
from sordino.runs import exactness


def accuracy() -> float:
    """Return the accuracy of one run, in folders of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SORDINO_HOME"] = f"{folder}/home"
        sys.argv = ["sordino", "run", "--mode", "secure", "--json", "--out", f"{folder}/runs", "--device", "cpu"]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            sordino()
    text = out.getvalue()
    return float(json.loads(text[text.index("{") :])["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--float-noise", action="store_true")
    parser.add_argument("--runs", type=int, default=4)
    args = parser.parse_args()
    if args.float_noise:
        exactness.of_run = lambda *_: None
    found = [accuracy() for _ in range(args.runs)]
    noise = "float" if args.float_noise else "exact"
    answer(what="secure accuracy", noise=noise, mean=round(statistics.mean(found), 5), runs=found)


if __name__ == "__main__":
    main()
