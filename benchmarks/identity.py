"""How long it takes to recognise a table: canonical form, keyed hashes, and the look-up in an equal stored set.

Seconds are those of the processor, so that other work on the machine does not count.

    python benchmarks/identity.py [--rows 1000000] [--columns 20] [--named]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from sordino.data import canonical
from sordino.ledger import overlap
from sordino.ledger.home import Key
from sordino.ledger.units import UnitStore
from sordino.runs.identity import of_raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--named", action="store_true", help="columns of a table instead of an array")
    asked = parser.parse_args()
    values, key = np.random.default_rng(0).normal(size=(asked.rows, asked.columns)), Key(bytes(range(32)))
    table = pd.DataFrame(values, columns=[f"c{i}" for i in range(asked.columns)])

    def make(first: int = 0) -> canonical.Raw:
        if asked.named:
            return canonical.of_table(table.iloc[first:], "c0", None, None, None)
        return canonical.of_arrays(values[first:])

    with tempfile.TemporaryDirectory() as place:
        store = UnitStore(Path(place) / "units.sqlite")
        start = time.process_time()
        units = of_raw(make(), "record", "", key)
        hashed = time.process_time() - start
        store.add("first", units)
        stored = time.process_time() - start - hashed
        for first, what in ((0, "equal"), (1, "one fewer")):
            other = of_raw(make(first), "record", "", key)
            start = time.process_time()
            mask = overlap.known(other, store.members()["first"], store, True)
            looked = time.process_time() - start
            known = 0 if mask is None else int(mask.sum())
            forms = "+".join(other.rows)
            print(
                f"{asked.rows} x {asked.columns} ({forms}), {what}: form and hash {hashed:.2f} s, "
                f"look-up {looked:.2f} s, together {hashed + looked:.2f} s; {known} known (stored once: {stored:.2f} s)"
            )
        store.close()


if __name__ == "__main__":
    main()
