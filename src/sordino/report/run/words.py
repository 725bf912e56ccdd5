"""Numbers and names in words that somebody outside the field can read."""

from __future__ import annotations

import math

from sordino.privacy.guarantee import UNITS

PEOPLE = {  # of whom an attacker asks whether they are in the data
    "record": "a given record",
    "client": "a given client",
    "user": "a given user",
    "label": "a given label",
    "report": "a given report",
}


def percent(share: float, digits: int = 1) -> str:
    """Return a share in percent; never 100 % or 0 % unless it is exactly that."""
    if not 0 < share < 1:
        return f"{100 * share:.0f} %" if share in (0.0, 1.0) else f"{100 * share:.{digits}f} %"
    for places in range(digits, 7):
        text = f"{100 * share:.{places}f}"
        if float(text) not in (0.0, 100.0):
            return f"{text} %"
    return "almost 0 %" if share < 0.5 else "almost 100 %"


def percent_up(share: float) -> str:
    """Return a share in percent with one decimal, rounded up, as suits an upper bound."""
    return f"{min(100.0, math.ceil(1000 * share - 1e-9) / 10):g} %"


def small(value: float) -> str:
    """Return a small probability as people say it: 1 in 100,000."""
    if value <= 0:
        return "zero"
    if value < 1e-15:
        return f"1 in 10 to the power of {math.floor(-math.log10(value))}"
    odds = 1 / value
    if odds < 2:
        return percent(value)
    digits = max(0, int(math.log10(odds)) - 2)
    return f"1 in {math.floor(odds / 10**digits + 1e-9) * 10**digits:,.0f}"


def figures(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits and thousands separated."""
    if not math.isfinite(value):
        return "infinite" if value > 0 else "unknown"
    if value and not 1e-3 <= abs(value) < 1e9:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    places = 0 if not value else max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(count: float) -> str:
    """Return a number of bytes."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{figures(count / least)} {unit}"
    return f"{count:.0f} bytes"


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun: 1 round, 1,000 rounds."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def whose(unit: str) -> tuple[str, str]:
    """Return whom a unit of privacy means, and the verb that goes with it."""
    text = UNITS.get(unit, f"any single {unit}")
    return text, "are" if text.startswith("all ") else "is"


def question(unit: str, relation: str) -> str:
    """Return what an attacker asks."""
    what = PEOPLE.get(unit, f"a given {unit}")
    if unit == "label":
        return "whether a record has a given label rather than another one"
    return f"whether {what} is in the data" + (" rather than another one" if relation == "replace" else "")


def joined(parts: list[str] | tuple[str, ...]) -> str:
    """Return a list as text: a, b and c."""
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def capital(text: str) -> str:
    """Return a sentence that begins with a capital letter."""
    return text[:1].upper() + text[1:]
