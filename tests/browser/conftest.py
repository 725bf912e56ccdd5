"""One browser for all tests of a process, and a fresh page for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from support import browser as browsers


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return a running browser."""
    browsers.needed()
    with browsers.launched() as found:
        yield found


@pytest.fixture
def visit(browser: Any) -> Callable[..., AbstractContextManager[browsers.Visit]]:
    """Return a function that opens an empty page: `with visit("phone", color_scheme="dark") as seen: ...`."""

    def opened(size: str = "desktop", **options: Any) -> AbstractContextManager[browsers.Visit]:
        return browsers.visit(browser, size, **options)

    return opened
