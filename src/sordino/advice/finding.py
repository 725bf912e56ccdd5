"""The result type of the rules of `sordino check`."""

from __future__ import annotations

from dataclasses import dataclass

SEVERITIES = ("broken", "weak", "note")


@dataclass(frozen=True)
class Finding:
    """One result of a rule of `sordino check`."""

    severity: str  # one of SEVERITIES
    found: str  # what was found
    why: str  # why it matters
    fix: str  # what to do about it
    rule: str = ""  # name of the rule
