"""Write docs/api.md, the reference of the public names, from their docstrings.

python docs/reference.py            # writes the page
python docs/reference.py --check    # says whether the page is up to date
"""

from __future__ import annotations

import inspect
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
    for name in ("accounting", "mechanisms", "methods", "algorithms"):
        module = getattr(sordino, name)
        parts += [f"## sordino.{name}\n", _code(module.__doc__)]
        parts += [_entry(f"sordino.{name}", each, getattr(module, each)) for each in getattr(module, "__all__", ())]
        if name in KINDS:
            parts.append(_list(KINDS[name]))
    return "\n".join(parts)


def _entry(module: str, name: str, value: Any) -> str:
    signature = ""
    if inspect.isclass(value) or inspect.isfunction(value):
        try:
            signature = str(inspect.signature(value))
        except ValueError:
            signature = "(...)"
    text = _code(inspect.getdoc(value)) if inspect.isclass(value) or inspect.isfunction(value) else ""
    return f"### {module}.{name}\n\n" + (f"```python\n{name}{signature}\n```\n\n" if signature else "") + text


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
