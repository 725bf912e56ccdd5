"""The key under which a user's registry hashes people: made once, and never replaced while hashes need it."""

from __future__ import annotations

from pathlib import Path

from sordino.core.errors import RunError
from sordino.ledger import home
from sordino.ledger.home import Key
from sordino.ledger.units import UnitStore


def require_key(units: Path) -> Key:
    """The user's key; made the first time, and never while there are hashes that it would not fit."""
    found = home.read_key()
    if found is not None:
        return found
    if units.is_file() and _keys(units):
        raise RunError(
            f"the key {home.key_file()} is missing, and {units} holds hashes that need it: put it back (`sordino "
            "ledger key import FILE`), or make another (`sordino ledger key new`), with which data of earlier runs "
            "can be compared by name only."
        )
    return home.new_key()


def _keys(units: Path) -> set[str]:
    store = UnitStore(units, "read")
    try:
        return store.keys()
    finally:
        store.close()
