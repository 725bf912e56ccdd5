"""The picture in the README, from the record files of a run and of its twin without privacy.

python docs/figures.py RUN TWIN docs/run.png      (needs matplotlib)
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def records(folder: str) -> list[dict]:
    return [json.loads(line) for line in (Path(folder) / "public" / "records.jsonl").read_text().splitlines()]


def main(run: str, twin: str, target: str) -> None:
    private, plain = records(run), records(twin)
    promise = json.loads((Path(run) / "public" / "plan.json").read_text())["promise"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for rows, label, colour in ((plain, "without privacy", "0.55"), (private, "with privacy", "tab:blue")):
        label = f"{label}: {100 * rows[-1]['accuracy']:.2f} %"
        left.plot([r["round"] for r in rows], [100 * r["accuracy"] for r in rows], color=colour, label=label)
    left.set(xlabel="round", ylabel="test accuracy (%)", title="MNIST, 50 clients", ylim=(90, 100),
             xlim=(0, private[-1]["round"]))  # fmt: skip
    left.legend(loc="lower right", frameon=False)
    right.plot([r["round"] for r in private], [r["epsilon"]["server"] for r in private], color="tab:blue")
    right.axhline(2.0, color="tab:red", linestyle="--")
    right.annotate("budget", (1, 2.0), xytext=(0, 4), textcoords="offset points", color="tab:red")
    right.set(xlabel="round", ylabel="epsilon spent, in total", ylim=(0, 2.3),
              title=f"any record, against the server, delta = {promise['delta']:g}")  # fmt: skip
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:4])
