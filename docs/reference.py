"""Write the reference, docs/api.md and the pages of docs/reference, from docstrings, comments and help texts.

python docs/reference.py            # writes the pages
python docs/reference.py --check    # says whether the pages are up to date
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
os.environ.pop("SORDINO_PLUGINS", None)  # plug-ins of a user are not part of the package

import command_pages  # noqa: E402
import docstrings  # noqa: E402
from docstrings import escaped  # noqa: E402

import sordino  # noqa: E402
from sordino.core import plugin  # noqa: E402

HEAD = """# Reference

These pages list the public names of Sordino, the commands with all their flags, and the keys of run files. Everything
else may change without notice; [contributing](contributing.md) says how public names change. The pages are made by
`python docs/reference.py` from docstrings, from the comments behind options and from the help texts of the commands.

## Python

```{toctree}
:maxdepth: 1

sordino: train, load, compare, plan, check, attack <reference/sordino>
sordino.accounting: price releases without training <reference/accounting>
sordino.callbacks: functions that are called after every round <reference/callbacks>
sordino.mechanisms: every noise mechanism <reference/mechanisms>
sordino.methods: every method, and what one's own derives from <reference/methods>
sordino.algorithms: every algorithm, and what one's own derives from <reference/algorithms>
Attacks <reference/attacks>
```

## Command line and files

```{toctree}
:maxdepth: 1

Commands and flags <reference/commands>
Keys of a run <reference/keys>
```
"""
PACKAGES = ("accounting", "callbacks", "mechanisms", "methods", "algorithms")
KINDS = {"mechanisms": "privacy.mechanisms", "methods": "methods", "algorithms": "algorithms"}


def pages() -> dict[str, str]:
    """Return the text of every page, by its path in docs."""
    made = {"api.md": HEAD, "reference/sordino.md": _package("sordino", sordino)}
    for name in PACKAGES:
        made[f"reference/{name}.md"] = _package(f"sordino.{name}", getattr(sordino, name))
    made["reference/attacks.md"] = _attacks()
    made["reference/commands.md"] = command_pages.commands()
    made["reference/keys.md"] = command_pages.keys()
    return made


def _link(text: str) -> str | None:
    """Return the anchor of a public name, of a plug-in or of a command that a piece of code names."""
    return _anchors().get(text.removesuffix("()")) or command_pages.anchor(text)


@cache
def _anchors() -> dict[str, str]:
    """Return the anchors by all the ways in which a text may name something."""
    found: dict[str, str] = {}
    for module in ("sordino", *(f"sordino.{name}" for name in PACKAGES)):
        found |= {module: module, module.removeprefix("sordino."): module}
        for name, _ in _names(module):
            full = f"{module}.{name}"
            found |= {full: full, full.removeprefix("sordino."): full}
    for package, kind in KINDS.items():
        for name in _shipped(kind):
            found[f"sordino.{package}.{plugin.load(kind, name).__name__}"] = f"{package}-{name}"
    return found


def _names(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the public names of a module that are documented on its page."""
    package = sordino if module == "sordino" else getattr(sordino, module.split(".")[1])
    for name in getattr(package, "__all__", ()):
        value = getattr(package, name)
        if name != "__version__" and not isinstance(value, ModuleType):
            yield name, value


def _shipped(kind: str) -> list[str]:
    return [name for name in plugin.available(kind) if plugin.ours(kind, name)]


def _package(module: str, package: ModuleType) -> str:
    listed = [name for name, _ in _names(module)] + list(PACKAGES)
    parts = [f"({module})=\n# {module}", docstrings.prose(package.__doc__, listed, _link)]
    parts += [_entry(module, name, value) for name, value in _names(module)]
    kind = KINDS.get(module.removeprefix("sordino."))
    if kind:
        parts += [_shipped_table(module, kind), *(_plugin(module, kind, name) for name in _shipped(kind))]
    return "\n\n".join(parts) + "\n"


def _entry(module: str, name: str, value: Any) -> str:
    head, value = f"({module}.{name})=\n## {name}", inspect.unwrap(value) if callable(value) else value
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"{head}\n\n`{module}.{name}` is a type: `{value}`."
    doc, names = inspect.getdoc(value), list(_parameters(value))
    parts = [head, _signature(f"{module}.{name}", value)]
    parts.append(docstrings.prose(docstrings.without_arguments(doc, names), (), _link))
    parts += [_arguments(value, doc), _members(value)]
    return "\n\n".join(part for part in parts if part)


def _parameters(value: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(value).parameters)
    except ValueError:
        return {}


def _signature(full: str, value: Any) -> str:
    """Return the call with the names and defaults of its arguments; their types are in the table below."""
    short = []
    given = _parameters(value)
    for name, each in given.items():
        if each.kind is each.KEYWORD_ONLY and "*" not in short and not any(s.startswith("*") for s in short):
            short.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        short.append(f"{stars}{name}{'' if each.default is each.empty else f'={_default(each)}'}")
    line = f"{full}({', '.join(short)})"
    if len(line) > 88:
        line = f"{full}(\n" + "".join(f"    {each},\n" for each in short) + ")"
    return f"```python\n{line}\n```"


def _default(each: inspect.Parameter) -> str:
    return "..." if repr(each.default).startswith("<") else repr(each.default)


def _arguments(value: Any, doc: str | None) -> str:
    """Return a table of the arguments, or nothing where neither types nor descriptions are known."""
    given = {name: each for name, each in _parameters(value).items() if name not in ("self", "cls", "args")}
    texts = plugin.field_help(value) if dataclasses.is_dataclass(value) and isinstance(value, type) else {}
    texts |= docstrings.arguments(doc, list(given))
    rows = []
    for name, each in given.items():
        kind = "" if each.annotation is each.empty else _type(each.annotation)
        default = "" if each.default is each.empty else f"`{_default(each)}`"
        rows.append([f"`{'**' * (each.kind is each.VAR_KEYWORD)}{name}`", kind, default, texts.get(name, "")])
    return table(["argument", "type", "default", "what it is"], rows) if rows else ""


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return f"`{text.strip(chr(39))}`"


def _members(value: Any) -> str:
    """Return a table of the public methods and properties that a class defines, with their first paragraphs."""
    rows = []
    for name, member in vars(value).items() if inspect.isclass(value) else ():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        call = [n for n in _parameters(function) if n not in ("self", "cls")]
        shown = name if isinstance(member, property) else f"{name}({', '.join(call)})"
        rows.append([f"`{shown}`", " ".join(docstrings.blocks(function.__doc__)[0])])
    return table(["method or property", "what it does"], rows) if rows else ""


def _shipped_table(module: str, kind: str) -> str:
    """Return a table of all plug-ins of a kind that Sordino ships, with links to their sections below."""
    package = module.removeprefix("sordino.")
    rows = []
    for name in _shipped(kind):
        first = " ".join(docstrings.blocks(inspect.getmodule(plugin.load(kind, name)).__doc__)[0])
        summary = first.split(".  ")[0].split(". ")[0].rstrip(".")
        rows.append([f"[`{name}`](#{package}-{name})", f"`{plugin.load(kind, name).__name__}`", f"{summary}."])
    return f"## All {package}\n\n{table(['name', 'class', 'what it is'], rows)}"


def _plugin(module: str, kind: str, name: str) -> str:
    """Return the section of one plug-in: the docstring of its file, its options, and what a mechanism can do."""
    loaded, package = plugin.load(kind, name), module.removeprefix("sordino.")
    doc = inspect.cleandoc(inspect.getmodule(loaded).__doc__ or "")
    parts = [f"({package}-{name})=\n### {name}", _signature(f"{module}.{loaded.__name__}", loaded)]
    parts += [docstrings.prose(doc, (), _link), _arguments(loaded, None)]
    parts += [_members(loaded)] if package == "mechanisms" else []
    return "\n\n".join(part for part in parts if part)


def _attacks() -> str:
    doc = (
        "[Attacks](../attacks.md) explains how they are made and read. A name goes into "
        "`sordino attack RUN --attack NAME` or [`sordino.attack`](#sordino.attack); an attack with options of its own "
        "is an object of the class shown below."
    )
    parts, rows = ["(sordino.attacks)=\n# Attacks", doc], []
    for name in _shipped("attacks"):
        made = plugin.load("attacks", name)
        sees, needs = ", ".join(made.sees), ", ".join(made.needs) or "nothing"
        rows.append([f"[`{name}`](#attacks-{name})", made.kind, sees, made.reads, needs])
    parts.append(table(["name", "kind", "whose views suffice", "what it reads", "what else it needs"], rows))
    parts += [_plugin("sordino.attacks", "attacks", name) for name in _shipped("attacks")]
    return "\n\n".join(parts).replace("\n### ", "\n## ") + "\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; a column that is empty in all rows is left out, and the last column is prose."""
    used = [k for k in range(len(head)) if any(row[k] for row in rows)]
    cells = [[*row[:-1], escaped(row[-1], _link)] for row in rows]
    lines = [[head[k] for k in used], ["---"] * len(used), *([row[k] for k in used] for row in cells)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def main() -> None:
    made = pages()
    if "--check" in sys.argv[1:]:
        old = sorted(path for path, text in made.items() if _read(DOCS / path) != text)
        sys.exit(f"out of date: {', '.join(old)}. Run python docs/reference.py" if old else 0)
    (DOCS / "reference").mkdir(exist_ok=True)
    for path, text in made.items():
        (DOCS / path).write_text(text, encoding="utf-8")


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    main()
