"""The settings of an experiment's runs, in words: what all runs share, then what each row has of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sordino.core import plugin
from sordino.papers.base import FORMS, Outcome
from sordino.spec import spec

WORDS = {"printed": "as printed", "sound": "sound", "features": "sound, fixed features", "reference": "without privacy"}
ALWAYS = (
    "dataset", "model", "clients", "rounds", "optimizer", "learning_rate", "delta", "clip", "scope", "reading",
    "mechanism", "alpha", "beta",
)  # fmt: skip
HIDDEN = {  # how and where runs are made, which no result depends on, and what the table shows itself
    "audit", "baseline", "checkpoint_seconds", "compile", "data_dir", "device", "epsilon", "evaluate_every",
    "federation", "memory_gb", "mode", "name", "out", "record_views", "seed", "workers",
}  # fmt: skip
Settings = dict[str, str]


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Return one line with the settings that all runs share, and one for each form with those of its rows."""
    forms = {form: _rows([o for o in outcomes if o.trial.form == form]) for form in FORMS}
    forms = {form: rows for form, rows in forms.items() if rows}
    if not forms:
        return []
    shared = _shared([settings for rows in forms.values() for settings in rows.values()])
    out = [f"Settings of all runs: {_said(shared)}."] if shared else []
    for form, rows in forms.items():
        own = _shared(list(rows.values()), shared)
        groups: dict[str, list[str]] = {}
        for row, settings in rows.items():
            groups.setdefault(_said(_without(settings, shared | own)), []).append(row)
        parts = [_said(own)] + [f"*{', '.join(names)}*: {said}" for said, names in groups.items() if said]
        if text := "; ".join(part for part in parts if part):
            out.append(f"- {WORDS[form].capitalize()}: {text}.")
    return [*out[:1], "", *out[1:]] if shared and len(out) > 1 else out


def _rows(outcomes: Sequence[Outcome]) -> dict[str, Settings]:
    return {
        row: _of_row([o for o in outcomes if o.trial.row == row])
        for row in dict.fromkeys(o.trial.row for o in outcomes)
    }


def _shared(rows: Sequence[Settings], known: Settings | None = None) -> Settings:
    """Return the settings that all rows have in common, without those that are known."""
    return {k: v for k, v in _without(rows[0], known or {}).items() if all(each.get(k) == v for each in rows)}


def _without(settings: Settings, known: Settings) -> Settings:
    return {k: v for k, v in settings.items() if k not in known}


def _said(settings: Settings) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())


def _of_row(outcomes: Sequence[Outcome]) -> Settings:
    """Return the settings of one row in one form; where they differ between columns, all of them, in this order."""
    by_x: dict[float | str, dict[str, Any]] = {}
    for o in outcomes:
        by_x.setdefault(o.trial.x, _with_defaults(o.trial.keys))
    out: Settings = {}
    for key in dict.fromkeys(k for o in outcomes for k in _worth_showing(o.trial.keys)):
        values = {x: _number(settings.get(key)) for x, settings in by_x.items()}
        columns: dict[str, list[str]] = {}
        for x, value in values.items():
            columns.setdefault(value, []).append(_number(x))
        if len(columns) == 1:
            out[key] = next(iter(columns))
        elif any(value != _number(x) for x, value in values.items()):
            out[key] = "(" + "; ".join(f"{value} at {', '.join(xs)}" for value, xs in columns.items()) + ")"
    return out


def _defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    out = {f.name: f.default for f in spec.fields()}
    for kind, name in (("methods", str(keys["method"])), ("algorithms", str(keys.get("algorithm")))):
        if name in plugin.loadable(kind):
            out |= {f.name: f.default for f in spec.plugin_fields(kind, name)}
    return {k: v for k, v in out.items() if v is not dataclasses.MISSING}


def _with_defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    out = _defaults(keys) | dict(keys)
    if str(out.get("partition")).startswith("natural:"):  # which says how many clients there are
        del out["clients"]
    return out


def _worth_showing(keys: Mapping[str, Any]) -> list[str]:
    """Return the keys that are always shown, and those that are not at their default."""
    usual, full = _defaults(keys), _with_defaults(keys)
    known = [k for k in dict.fromkeys(["method", *ALWAYS, *keys]) if full.get(k) is not None and k not in HIDDEN]
    return [k for k in known if k == "method" or k in ALWAYS or full[k] != usual.get(k)]


def _number(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else str(value)
