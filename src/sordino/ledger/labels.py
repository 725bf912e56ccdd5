"""Names of data in a ledger, and messages to the owner about overlap with data of another name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sordino.core.rounding import up
from sordino.ledger.chain import Entry
from sordino.ledger.charges import charge_of, total
from sordino.ledger.overlap import Overlap
from sordino.ledger.units import Units

BENCHMARK, UNNAMED, IMPORTED = "benchmark ", "(unnamed ", "(imported "  # prefixes of labels that no owner chose


def is_name(label: str) -> bool:
    """Return whether the owner of the data chose this label."""
    return not label.startswith((BENCHMARK, UNNAMED, IMPORTED))


def apart_by_name(data: str, declared: Iterable[Entry]) -> Callable[[str], bool]:
    """Return a predicate: do data of another name never count together with `data`?

    This is so if they were declared distinct, or if either is a public benchmark.
    """
    pairs = {frozenset(e.details()["names"]) for e in declared}

    def apart(other: str) -> bool:
        if other == data:
            return False
        return frozenset((data, other)) in pairs or data.startswith(BENCHMARK) or other.startswith(BENCHMARK)

    return apart


def look_alikes(earlier: Overlap, units: Units | None) -> list[str]:
    """Return one message for each other name under which someone in these data is known, for the owner only."""
    if units is None:
        return []
    out = []
    for label, (number, entries) in earlier.shared().items():
        if label == earlier.data:
            continue
        runs = list(dict.fromkeys(str(e.details().get("run") or e.job or e.kind) for e in entries))
        listed = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
        who = f"{number} of {earlier.count} {units.unit}s" if earlier.count > 1 else "these data"
        whence = f"data {label}" if is_name(label) else "data without a name"
        spent = up(total(charge_of(e).epsilon for e in entries))
        text = f"{who} are known from {whence} ({listed}), which spent epsilon {spent}; that counts here as well. "
        out.append(text + _way_out(earlier.data, label))
    return out


def _way_out(data: str, label: str) -> str:
    if not is_name(label):
        return "Give all runs on the same data one data_name." if not data else (
            f'If these are other people, declare it: `sordino ledger distinct {data} "{label}"`.'
        )  # fmt: skip
    if not data:
        return (
            f"If they are the same data, give data_name = {label}; if they are other people, give them a name of their "
            f"own and declare it: `sordino ledger distinct NAME {label}`."
        )
    return (
        f"If they are the same data, give data_name = {label}; if they are other people, declare it: "
        f"`sordino ledger distinct {data} {label}`."
    )
