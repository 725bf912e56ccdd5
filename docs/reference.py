"""Write docs/api.md, the reference of the public names, from their docstrings.

python docs/reference.py            # writes the page
python docs/reference.py --check    # says whether the page is up to date
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import sordino
from sordino.core import plugin

PAGE = Path(__file__).parent / "api.md"
HEAD = """# API reference

These are the public names of Sordino; everything else may change without notice (CONTRIBUTING says how public names
change). The page is made from the docstrings by `python docs/reference.py`.
"""
KINDS = {"mechanisms": "privacy.mechanisms", "methods": "methods", "algorithms": "algorithms"}


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, "## sordino\n", _code(sordino.__doc__)]
    for name in sordino.__all__:
        if name != "__version__" and not isinstance(getattr(sordino, name), ModuleType):
            parts.append(_entry("sordino", name, getattr(sordino, name)))
    for name in ("accounting", "callbacks", "mechanisms", "methods", "algorithms"):
        module = getattr(sordino, name)
        parts += [f"## sordino.{name}\n", _code(module.__doc__)]
        parts += [_entry(f"sordino.{name}", each, getattr(module, each)) for each in getattr(module, "__all__", ())]
        if name in KINDS:
            parts.append(_list(KINDS[name]))
    return "\n".join(parts)


def _entry(module: str, name: str, value: Any) -> str:
    head, value = f"### {module}.{name}\n", inspect.unwrap(value) if callable(value) else value
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"{head}\nA type: `{value}`.\n"
    return f"{head}\n```python\n{name}{_signature(value)}\n```\n\n{_code(inspect.getdoc(value))}{_members(value)}"


def _signature(value: Any) -> str:
    """Return the arguments with their types as they are written, without the quotes of postponed annotations."""
    try:
        text = str(inspect.signature(value))
    except ValueError:
        return "(...)"
    plain = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text.replace("<factory>", "..."))
    return plain.removesuffix(" -> None")


def _members(value: Any) -> str:
    """Return a list of the public methods and properties that a class defines itself, with their first sentences."""
    if not inspect.isclass(value):
        return ""
    rows = []
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = name if isinstance(member, property) else f"{name}{_signature(function)}"
        rows.append(f"- `{shown}`: {' '.join(inspect.cleandoc(function.__doc__).split(chr(10) * 2)[0].split())}")
    return "\n" + "\n".join(rows) + "\n" if rows else ""


def _list(kind: str) -> str:
    """Return a table of all plug-ins of a kind that Sordino ships, with the first sentence of their module."""
    rows = ["| class | name | what it is |", "| --- | --- | --- |"]
    for name in plugin.available(kind):
        found = plugin.load(kind, name)
        if plugin.ours(kind, name):
            module = inspect.getmodule(found)
            first = (inspect.getdoc(module) or "").split("\n")[0]
            rows.append(f"| `{found.__name__}` | `{name}` | {first} |")
    return "\n".join(rows) + "\n"


def _code(text: str | None) -> str:
    """Return a docstring as it stands, in a block: its indentation has a meaning."""
    return f"```text\n{inspect.cleandoc(text or '')}\n```\n"


def main() -> None:
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE} is out of date: run python docs/reference.py")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
