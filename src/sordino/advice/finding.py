"""What a rule of `sordino check` found."""

from __future__ import annotations

from dataclasses import dataclass

SEVERITIES = ("broken", "weak", "note")


@dataclass(frozen=True)
class Finding:
    severity: str
    found: str
    why: str
    fix: str
    rule: str = ""
