"""How quick the views are with 1,000 runs and with a run of 100,000 rounds: first paint, pages, memory.

    python benchmarks/views.py [--runs 1000] [--rounds 100000] [--repeats 3]

Makes so many finished runs of 30 rounds and one long run that goes on (its lock is held, and it writes ten rounds a
second), starts `sordino ui` on them, opens its pages in Chromium, and prints one JSON line a page: seconds until what
was asked for stands there, and where a page is opened anew, until the first contentful paint. Then `sordino watch` on
the same folder. The browser and the server share the machine.
"""

import argparse
import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from common import answer
from playwright.sync_api import sync_playwright
from rich.console import Console

from sordino.cli.watch import WatchedRuns
from sordino.core.record import RoundRecord
from sordino.ui.shelf import Shelf

COMMAND = str(Path(sys.executable).with_name("sordino"))
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PROMISE = {
    "epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "add/remove", "viewer": "server", "mode": "secure",
    "reason": None, "channel": "direct", "public": [], "exact": False, "infinite": False, "total": True,
    "sentence": "In total, any single record is protected with epsilon = 2.",
}  # fmt: skip
METHODS = ("dp-sgd", "dp-fedavg", "nbafl", "udp-fl", "fedsdp")
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
FRAMES = """async () => {
  const times = []; let before = performance.now();
  for (let k = 0; k < 60; k++) {
    window.scrollBy(0, k % 30 < 15 ? 40 : -40);
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - before); before = performance.now();
  }
  return times.sort((a, b) => a - b);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SORDINO_HOME"] = str(Path(folder) / "home")
        runs = Path(folder) / "runs"
        for k in range(args.runs):
            make(runs / f"run-{k:04d}", 30, method=METHODS[k % 5], epsilon=1 + k % 7)
        long = make(runs / "long", args.rounds, finished=False)
        with (long / "private" / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            writer = Writer(long, args.rounds)
            writer.start()
            try:
                browse(runs, args.repeats)
                watch(runs)
            finally:
                writer.stop = True
                writer.join()


def record(number: int, rounds: int) -> str:
    """Return a line of public records."""
    spent = {"server": 2.0 * (number / rounds) ** 0.5, "public": 1.0 * (number / rounds) ** 0.5}
    accuracy = 0.9 - 0.5 * math.exp(-8 * number / rounds) + 0.01 * math.sin(number)
    return (
        RoundRecord(number, spent, 1 - accuracy, accuracy, evaluated_on="public test data", noise=1.2).to_line() + "\n"
    )


def make(run: Path, rounds: int, finished: bool = True, method: str = "dp-sgd", epsilon: float = 2.0) -> Path:
    """Write the folder of a run; of one that goes on, nine tenths of its rounds."""
    public, private = run / "public", run / "private"
    public.mkdir(parents=True)
    private.mkdir(mode=0o700)
    promise = PROMISE | {"rounds": rounds, "epsilon": epsilon}
    (public / "plan.json").write_text(json.dumps({"method": method, "promise": promise, "claim": None}))
    (public / "spec.toml").write_text(f'method = "{method}"\ndataset = "mnist"\nrounds = {rounds}\n')
    with (public / "records.jsonl").open("w") as file:
        file.writelines(record(k, rounds) for k in range(1, (rounds if finished else rounds * 9 // 10) + 1))
    (private / "lock").touch()
    if finished:
        result = {"guarantee": promise, "guarantees": {"server": promise}, "rounds": rounds, "accuracy": 0.89}
        (public / "result.json").write_text(json.dumps(result))
    return run


class Writer(threading.Thread):
    """Writes rounds of a run as training does."""

    def __init__(self, run: Path, rounds: int) -> None:
        super().__init__(daemon=True)
        self.path, self.rounds, self.stop = run / "public" / "records.jsonl", rounds, False

    def run(self) -> None:
        number = self.rounds * 9 // 10
        while not self.stop and number < self.rounds:
            number += 1
            with self.path.open("a") as file:
                file.write(record(number, self.rounds))
            time.sleep(0.1)


def browse(runs: Path, repeats: int) -> None:
    """Print how long pages take, each time from a server and a browser that have seen nothing before."""
    taken: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeats):
        start = time.perf_counter()
        server = subprocess.Popen(
            [COMMAND, "ui", str(runs), "--no-browser", "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        try:
            (address,) = re.findall(r"http://\S+", server.stdout.readline())
            taken.setdefault("sordino ui prints its address", []).append({"seconds": time.perf_counter() - start})
            with sync_playwright() as play:
                chromium = os.environ.get("SORDINO_CHROMIUM") or shutil.which("chromium")
                browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
                pages(browser.new_context(viewport={"width": 1280, "height": 900}).new_page(), address, taken)
                browser.close()
            size = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())
            taken.setdefault("memory of the server", []).append({"megabytes": int(size.group(1)) / 1000})
        finally:
            server.terminate()
            server.wait()
    for what, each in taken.items():
        answer(what=what, **{name: round(median(t[name] for t in each), 3) for name in each[0]})


def pages(page, address: str, taken: dict[str, list[dict[str, float]]]) -> None:
    """Open every page once."""
    origin = address.split("?")[0]

    def timed(what: str, act, wanted: str, paint: bool = False) -> None:
        start = time.perf_counter()
        act()
        page.locator(wanted).first.wait_for()
        told = {"seconds": time.perf_counter() - start}
        taken.setdefault(what, []).append(({"first_paint": page.evaluate(PAINT)} if paint else {}) | told)

    page.goto(address)  # the token becomes a cookie
    page.wait_for_url(f"{origin}**")
    page.get_by_role("heading", level=1).wait_for()
    timed("list of all runs", lambda: page.goto(f"{origin}?{time.time()}"), "table.runs tbody tr", True)
    timed("next page of the list", page.get_by_role("link", name="Next").click, "nav.pager :text('Page 2')")
    sort = page.get_by_role("button", name="epsilon")
    timed("sorted by epsilon", sort.click, "th[aria-sort=descending] button:has-text('epsilon')")
    timed("filtered", lambda: page.get_by_label("Filter").fill("long"), "table.runs tbody tr:only-child")
    timed("the long run", page.get_by_role("link", name="long", exact=True).click, "figure.chart svg")
    frames = page.evaluate(FRAMES)
    taken.setdefault("frames while it is scrolled", []).append(
        {"median_seconds": frames[30] / 1000, "longest_seconds": frames[-1] / 1000}
    )
    words = " ".join(page.locator(".progress-words").inner_text().split()[:2])
    timed("its next rounds, while it goes on", lambda: None, f".progress-words:not(:has-text('{words} '))")
    timed("the long run again, by its address", lambda: (page.reload(), None)[1], "figure.chart svg", True)
    timed("its report", page.get_by_role("link", name="Report").click, ".sections h2")


def watch(runs: Path) -> None:
    """Print how long `sordino watch` takes."""
    start = time.perf_counter()
    subprocess.run([COMMAND, "watch", str(runs), "--once"], check=True, stdout=subprocess.DEVNULL)
    answer(what="sordino watch --once, the whole command", seconds=round(time.perf_counter() - start, 2))
    console = Console(file=open(os.devnull, "w"), force_terminal=True, width=120, height=50)  # noqa: SIM115, PTH123
    start = time.perf_counter()
    view = WatchedRuns(Shelf([runs]), console)
    view.read(glance=True)
    console.print(view)
    answer(what="sordino watch, first picture", seconds=round(time.perf_counter() - start, 3))
    for what in ("everything read", "each further look"):
        start = time.perf_counter()
        view.read()
        console.print(view)
        answer(what=f"sordino watch, {what}", seconds=round(time.perf_counter() - start, 3))


if __name__ == "__main__":
    main()
