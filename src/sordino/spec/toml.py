"""TOML output of specs: a commented file with every key, and the formatting of values."""

from __future__ import annotations

from typing import Any

from sordino.core import plugin
from sordino.spec.spec import PLUGINS, Spec, fields, group_of, plugin_fields, plugin_help, types_of


def template() -> str:
    """Return a commented TOML file with every key at its default."""
    lines = ["# A Sordino run. Every key is optional; these are the defaults.", ""]
    group = None
    for f in fields():
        if group_of(f.name) != group:
            group = group_of(f.name)
            lines += ["", f"# --- {group}"]
        lines.append(_line(f.name, f.default, plugin.field_help(Spec)[f.name]))
    for kind, usual in zip(PLUGINS, (Spec.method, Spec.algorithm), strict=True):
        for name in plugin.loadable(kind):
            options, text = plugin_fields(kind, name), plugin_help(kind, name)
            if options:
                lines += ["", f"# --- of {name} only"]
                lines += [_line(f.name, f.default, text.get(f.name, ""), commented=name != usual) for f in options]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, text: str, commented: bool = False) -> str:
    hint = str(types_of(Spec).get(name, ""))
    example: Any = ("no", "yes") if "tuple" in hint else 10 if "int" in hint else 0.5 if "float" in hint else "..."
    shown = to_toml(example if value is None else value)
    start = "# " if value is None or commented else ""
    return f"{start}{name} = {shown}" + (f"  # {text}" if text else "")


def to_toml(value: Any) -> str:
    """Return a value formatted as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, tuple):
        return f"[{', '.join(to_toml(v) for v in value)}]"
    return repr(value)
