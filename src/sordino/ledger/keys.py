"""The key of the hashes in a user's registry: created once, and never replaced while stored hashes need it."""

from __future__ import annotations

from pathlib import Path

from sordino.core.errors import RunError
from sordino.ledger import home
from sordino.ledger.home import Key
from sordino.ledger.units import UnitStore


def require_key(units: Path) -> Key:
    """Return the user's key, and create it if there is none; raise an error if stored hashes need a missing key.

    `units` is the file of the stored hashes.
    """
    key = home.read_key()
    if key is not None:
        return key
    if units.is_file() and _keys(units):
        raise RunError(
            f"the key {home.key_file()} is missing, and {units} holds hashes that need it: put it back (`sordino "
            "ledger key import FILE`), or make another (`sordino ledger key new`); then data of earlier runs can be "
            "compared by name only."
        )
    return home.new_key()


def _keys(units: Path) -> set[str]:
    store = UnitStore(units, "read")
    try:
        return store.keys()
    finally:
        store.close()
