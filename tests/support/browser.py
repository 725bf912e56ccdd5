"""A real browser for tests of pages: Chromium, driven by Playwright, with its network closed but for loopback.

Where there is no browser the tests are skipped by name; with SORDINO_BROWSER=required, as in CI, they fail instead.
Pages forbid the evaluation of text as code, so tests wait with `expect(...)`, never with `wait_for_function`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
WAIT = 30_000  # milliseconds for what a page has to show; pages look at their run every three seconds
LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")


def executable() -> str | None:
    """Return the browser of this machine; None if there is none."""
    return os.environ.get("SORDINO_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def needed() -> str:
    """Return the browser of this machine; skip the test, or fail in CI, if there is none."""
    found = executable()
    if found is None:
        why = "needs Chromium (apt-get install chromium)"
        if os.environ.get("SORDINO_BROWSER") == "required":
            pytest.fail(why)
        pytest.skip(why)
    return found


@contextmanager
def launched() -> Iterator[Any]:
    """Start the browser, and end it afterwards."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=needed(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page that is open in the browser, and all that went wrong in it."""

    page: Any
    problems: list[str] = field(default_factory=list)  # messages of the console, errors, requests that leave
    requests: list[str] = field(default_factory=list)

    def serious(self) -> list[str]:
        """Return the serious and critical findings of axe on the page as it stands."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [
            f"{v['id']}: {v['help']}: {[n['target'] for n in v['nodes']][:4]}"
            for v in found
            if v["impact"] in ("serious", "critical")
        ]


@contextmanager
def visit(browser: Any, size: str = "desktop", **options: Any) -> Iterator[Visit]:
    """Open an empty page; afterwards nothing may have gone wrong in it, and no request may have left the machine.

    Args:
        browser: what `launched` gives.
        size: "desktop" or "phone".
        options: of the context, such as color_scheme="dark".
    """
    width, height = SIZES[size]
    settings = {"viewport": {"width": width, "height": height}, "reduced_motion": "reduce"} | options
    if size == "phone":
        settings |= {"has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    context = browser.new_context(**settings)
    context.set_default_timeout(WAIT)
    seen = Visit(context.new_page())

    def asked(request: Any) -> None:
        seen.requests.append(request.url)
        at = urlsplit(request.url)
        if at.scheme in ("http", "https", "ws", "wss") and at.hostname not in LOCAL:
            seen.problems.append(f"a request left the machine: {request.url}")

    context.on("request", asked)
    seen.page.on(
        "console", lambda m: seen.problems.append(f"console: {m.text}") if m.type in ("error", "warning") else None
    )
    seen.page.on("pageerror", lambda e: seen.problems.append(f"error: {e}"))
    seen.page.on("dialog", lambda d: (seen.problems.append(f"dialog: {d.message}"), d.dismiss()))
    try:
        yield seen
    finally:
        context.close()
    assert seen.problems == []


def address(path: Path) -> str:
    """Return the address of a file."""
    return path.resolve().as_uri()
