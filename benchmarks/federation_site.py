"""The daemon of a site as `sordino site` starts it, which also writes down what each answer took.

    python benchmarks/federation_site.py TIMES site --data ...     started by federation.py

The product measures nothing of this: timers are put around its functions here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sordino.cli.main import main
from sordino.deploy.site import FederationSite
from sordino.deploy.site_job import SiteJob

seconds: dict[str, float] = {}


def timed(owner: Any, name: str, kind: str) -> None:
    """Add up the seconds that a function of the product takes."""
    before: Callable[..., Any] = getattr(owner, name)

    def after(*args: Any, **keys: Any) -> Any:
        start = time.monotonic()
        try:
            return before(*args, **keys)
        finally:
            seconds[kind] = seconds.get(kind, 0.0) + time.monotonic() - start

    setattr(owner, name, after)


def written(path: Path) -> None:
    """Write one line for every answer: a site gives one at a time, from its lock on."""
    before = FederationSite._body

    def body(site: FederationSite, request: bytes) -> bytes:
        seconds.clear()
        start = time.monotonic()
        try:
            return before(site, request)
        finally:
            seconds["start"], seconds["body"] = start, time.monotonic() - start

    wait = FederationSite._wait

    def waited(site: FederationSite, began: float) -> None:
        start = time.monotonic()
        wait(site, began)
        line = {**seconds, "wait": time.monotonic() - start}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    FederationSite._body, FederationSite._wait = body, waited  # type: ignore[method-assign]


if __name__ == "__main__":
    timed(SiteJob, "answer", "work")
    written(Path(sys.argv.pop(1)))
    main()
