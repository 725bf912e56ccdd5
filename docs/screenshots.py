"""Make the pictures of reports and views that the documentation shows.

    python docs/screenshots.py [--runs FOLDER] [--out FOLDER] [NAME ...]

Trains small runs on embedded benchmarks (or takes those of an earlier call, which lie in --runs), opens their pages in
Chromium at the widths of a desktop and of a phone, and writes docs/screenshots/NAME-WIDTH.png. Without NAME all are
made; it takes some minutes, most of them for the runs.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

COMMAND = str(Path(sys.executable).with_name("sordino"))
OUT = Path(__file__).parent / "screenshots"
SIZES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1200, "height": 860}},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "is_mobile": True,
        "has_touch": True,
    },
}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
COLOURS = 160  # of a picture: text and charts need no more, and files stay small
TABLE = ["--dataset", "breast-cancer", "--clients", "8"]
RUNS = {  # name -> flags of `sordino run`
    "hospitals": [*TABLE, "--rounds", "20", "--epsilon", "4", "--baseline", "--record-views"],
    "whole-hospitals": [*TABLE, "--method", "nbafl", "--rounds", "20", "--epsilon", "8"],
    "trusted-server": [*TABLE, "--method", "dp-fedavg", "--rounds", "20", "--epsilon", "8"],
    "printed": [*TABLE, "--method", "geodp-paper", "--rounds", "20", "--epsilon", "4"],
    "digits": ["--dataset", "mnist", "--rounds", "30", "--epsilon", "2"],
}
GOING = ["--dataset", "mnist", "--rounds", "300", "--epsilon", "2", "--name", "digits-longer"]
COMPARED = ["none", "dp-sgd", "geodp", "geodp-paper"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    parser.add_argument("--runs", type=Path, help="where the runs are kept; those that are there are not made again")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - PICTURES.keys()):
        parser.error(f"there is no picture {', '.join(unknown)}; there are {', '.join(PICTURES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        home = (args.runs or Path(folder)).resolve()
        home.mkdir(parents=True, exist_ok=True)
        os.environ["SORDINO_HOME"] = str(home / "home")
        make(home)
        with running(home), served(home) as address, sync_playwright() as play:
            browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
            for name in args.names or PICTURES:
                for size, settings in SIZES.items():
                    context = browser.new_context(reduced_motion="reduce", **settings)
                    page = context.new_page()
                    PICTURES[name](page, home / "runs", address)
                    page.wait_for_timeout(400)
                    write(page, args.out / f"{name}-{size}.png")
                    context.close()
            browser.close()


def chromium() -> str:
    """Return the browser of this machine."""
    found = os.environ.get("SORDINO_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sys.exit("Chromium was not found: apt-get install chromium, or name it in SORDINO_CHROMIUM.")
    return found


def write(page: Page, path: Path) -> None:
    """Write what a page shows, with few colours."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


# --- runs


def sordino(home: Path, *words: str) -> None:
    subprocess.run([COMMAND, *words], cwd=home, check=True, stdout=subprocess.DEVNULL)


def make(home: Path) -> None:
    """Train the runs that are not there yet."""
    for name, flags in RUNS.items():
        if not (home / "runs" / name / "public" / "result.json").exists():
            sordino(home, "run", "--name", name, "--seed", "0", "--device", "cpu", *flags)
    if not (home / "runs" / "hospitals" / "private" / "attacks").exists():
        sordino(home, "audit", "runs/hospitals", "--canaries", "1000")
        sordino(home, "attack", "runs/hospitals", "--attack", "loss-threshold,gradient-alignment")
        sordino(home, "report", "runs/hospitals")
    if not (home / "runs" / "methods").exists():
        methods = ["--methods", ",".join(COMPARED), "--epsilon", "0.5,2", "--seeds", "3"]
        sordino(home, "compare", *methods, *TABLE, "--rounds", "20", "--name", "methods")


@contextmanager
def running(home: Path) -> Iterator[None]:
    """Train a longer run while pictures are taken."""
    records = home / "runs" / "digits-longer" / "public" / "records.jsonl"
    shutil.rmtree(records.parent.parent, ignore_errors=True)
    process = subprocess.Popen([COMMAND, "run", *GOING], cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and not (records.exists() and len(records.read_bytes().splitlines()) > 40):
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def served(home: Path) -> Iterator[str]:
    """Serve the view of the runs for their owner, and give its address."""
    process = subprocess.Popen(
        [COMMAND, "ui", "runs", "--for", "owner", "--no-browser", "--port", "0"],
        cwd=home, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            sys.exit("sordino ui printed no address")
        yield found.group()
    finally:
        process.terminate()
        process.wait()


# --- pictures


def enter(page: Page, address: str, place: str = "") -> None:
    """Open the view, and go to a place in it."""
    page.goto(address)
    page.get_by_role("heading", level=1).wait_for()
    page.locator("table.runs tbody tr").first.wait_for()
    if place:
        page.goto(f"{address.split('?')[0]}#/{place}")


def run_page(page: Page, address: str, name: str, tab: str = "") -> None:
    """Open a run of the list."""
    enter(page, address)
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("heading", level=1, name=name).wait_for()
    if tab:
        page.get_by_role("link", name=tab, exact=True).first.click()


def report(page: Page, runs: Path, address: str) -> None:
    page.goto((runs / "hospitals" / "public" / "report.html").as_uri())


def charts(page: Page, runs: Path, address: str) -> None:
    report(page, runs, address)
    page.locator("#convergence").scroll_into_view_if_needed()
    page.locator("#convergence").evaluate("e => e.scrollIntoView()")


def comparison(page: Page, runs: Path, address: str) -> None:
    page.goto((runs / "methods" / "public" / "report.html").as_uri())


def listed(page: Page, runs: Path, address: str) -> None:
    enter(page, address)


def live(page: Page, runs: Path, address: str) -> None:
    run_page(page, address, "digits-longer")
    page.locator("figure.chart svg").first.wait_for()


def calculator(page: Page, runs: Path, address: str) -> None:
    enter(page, address, "calculator")
    page.locator(".tile .value").first.wait_for()


def gallery(page: Page, runs: Path, address: str) -> None:
    enter(page, address, "attacks")
    page.locator(".gallery img").first.wait_for()


PICTURES: dict[str, Callable[[Page, Path, str], None]] = {
    "report": report, "charts": charts, "comparison": comparison, "list": listed, "live": live,
    "calculator": calculator, "attacks": gallery,
}  # fmt: skip

if __name__ == "__main__":
    main()
