"""Features with public constants, which the tests make from less than runs do."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest


def fewer_fields(module: ModuleType, number: int) -> Iterator[None]:
    """Let a module of features make its constants from so many public pictures: quicker, the same laws."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FIELDS", number)
        module.public_whitening.cache_clear()
        yield
    module.public_whitening.cache_clear()
