"""Turn docstrings into Markdown for the reference (docs/reference.py), block by block.

A docstring is a sequence of blocks with empty lines between them. A block is prose; a list in two columns, of which the
first names something; indented code; or a section such as "Args:". What cannot be told apart stays prose.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection

Link = Callable[[str], str | None]  # the target of the page that describes what a piece of code names

SECTIONS = ("Args", "Returns", "Raises", "Yields")
NAMED = re.compile(r"^(?:[\w*.-]+(?:\([^)]*\))?(?:, [\w*.-]+)*)")


def prose(doc: str | None, names: Collection[str] = (), link: Link = lambda code: None) -> str:
    """Return a docstring as Markdown; `names` are words that begin an entry of a list in two columns."""
    parts = []
    for block in blocks(doc):
        head = block[0].rstrip(":")
        if head in SECTIONS and block[0].endswith(":"):
            entries = section(block[1:])
            if head == "Args":
                continue  # a table of its own
            parts.append(definitions(entries, link) if head == "Raises" else f"**{head}** {_sentence(block[1:], link)}")
        elif all(line.startswith("    ") for line in block):
            parts.append(_code(block))
        elif entries := columns(block, names):
            parts.append(definitions(entries, link))
        else:
            parts.extend(_mixed(block, link))
    return "\n\n".join(parts)


def blocks(doc: str | None) -> list[list[str]]:
    """Return the lines of a docstring by block, without a common indentation; code with empty lines is one block."""
    text = inspect.cleandoc(doc or "")
    return [part.split("\n") for part in re.split(r"\n[ ]*\n", text) if part.strip()]


def arguments(doc: str | None, names: Collection[str]) -> dict[str, str]:
    """Return what a docstring says about each of these names, in a section "Args:" or in a list in two columns."""
    found: dict[str, str] = {}
    for block in blocks(doc):
        entries = section(block[1:]) if block[0] == "Args:" else columns(block, names)
        for name, text in entries:
            for each in name.replace("*", "").split(", "):
                if each in names:
                    found.setdefault(each, text)
    return found


def without_arguments(doc: str | None, names: Collection[str]) -> str:
    """Return a docstring without the lists that `arguments` reads."""
    kept = []
    for block in blocks(doc):
        entries = section(block[1:]) if block[0] == "Args:" else columns(block, names)
        if not any(set(name.replace("*", "").split(", ")) & set(names) for name, _ in entries):
            kept.append("\n".join(block))
    return "\n\n".join(kept)


def columns(block: list[str], names: Collection[str]) -> list[tuple[str, str]]:
    """Return the entries of a list in two columns, or nothing if the block is no such list.

    An entry begins with one of `names`, or has two spaces between its columns; its further lines are indented.
    """
    entries: list[tuple[str, list[str]]] = []
    for line in block:
        wide = re.match(r"^(\S.*?)\s{2,}(\S.*)$", line)
        first = NAMED.match(line)
        if wide and len(wide[1]) < 40 and not wide[1].endswith((".", ",", ":")):
            entries.append((wide[1], [wide[2]]))
        elif first and not line.startswith(" ") and set(first[0].replace("*", "").split(", ")) <= set(names):
            entries.append((first[0], [line[first.end() :].strip()]))
        elif entries and line.startswith("  "):
            entries[-1][1].append(line.strip())
        else:
            return []
    return [(name, " ".join(text)) for name, text in entries]


def section(lines: list[str]) -> list[tuple[str, str]]:
    """Return the entries "name: text" of a section, whose further lines are indented deeper."""
    entries: list[tuple[str, str]] = []
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    for line in lines:
        text = line[margin:]
        if not text.startswith(" ") and re.match(r"^[\w*, ]+: ", text):
            name, _, rest = text.partition(": ")
            entries.append((name, rest))
        elif entries:
            entries[-1] = (entries[-1][0], f"{entries[-1][1]} {text.strip()}")
    return entries


def definitions(entries: list[tuple[str, str]], link: Link) -> str:
    """Return a definition list."""
    heads = [name.split(", ") if all(map(link, name.split(", "))) else [name] for name, _ in entries]
    return "\n\n".join(
        f"{', '.join(code(each, link) for each in head)}\n: {escaped(text, link)}"
        for head, (_, text) in zip(heads, entries, strict=True)
    )


def code(text: str, link: Link = lambda code: None) -> str:
    """Return text as code, and as a link where it names something that a page describes."""
    target = link(text)
    return f"[`{text}`](#{target})" if target else f"`{text}`"


def escaped(text: str, link: Link = lambda code: None) -> str:
    """Return a piece of a docstring as Markdown that shows it as it is; what stands in backquotes stays code."""
    pieces = re.split(r"(`[^`]+`)", " ".join(text.split()))
    shown = [code(p[1:-1], link) if p.startswith("`") and len(p) > 2 else _plain(p) for p in pieces]
    return re.sub(r"^([#>+-]|\d+\.)(?= )", r"\\\1", "".join(shown))


def _plain(text: str) -> str:
    text = re.sub(r"([\\*<>\[\]~])", r"\\\1", text)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)


def _sentence(lines: list[str], link: Link) -> str:
    return escaped(" ".join(lines), link)


def _mixed(block: list[str], link: Link) -> list[str]:
    """Return the parts of a block that is prose, or prose with indented formulas between its lines."""
    parts: list[str] = []
    now: list[str] = []
    for line in [*block, ""]:
        changes = now and (line.startswith("    ") != now[-1].startswith("    "))
        if changes or not line:
            parts.append(_code(now) if now[0].startswith("    ") else _sentence(now, link))
            now = []
        now.append(line)
    return parts


def _code(block: list[str]) -> str:
    text = inspect.cleandoc("\n".join(["", *block]))
    return f"```{'pycon' if text.startswith('>>>') else 'text'}\n{text}\n```"
