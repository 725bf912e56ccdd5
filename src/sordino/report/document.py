"""The contents of a report, apart from how it looks: sections of paragraphs, facts, tables and charts.

The same document is written as HTML, Markdown and JSON, and shown by `sordino ui`, so that all of them say the same.
All texts are plain; whoever renders them escapes them. `source` names the files and fields that numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sordino.core.record import plain
from sordino.report.chart import Chart


@dataclass(frozen=True)
class Paragraph:
    """A paragraph: `lead` is large, `quiet` is small and pale, `warning` has a mark and a frame."""

    text: str
    tone: Literal["plain", "lead", "quiet", "warning"] = "plain"


@dataclass(frozen=True)
class Listing:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class FactSheet:
    """Names with their values, such as the parts of a guarantee."""

    rows: tuple[tuple[str, str], ...]
    source: str = ""


@dataclass(frozen=True)
class FigureTile:
    """A number that a reader should see first, with a word below it, such as "epsilon, in total"."""

    value: str
    label: str
    detail: str = ""


@dataclass(frozen=True)
class Tiles:
    """Large numbers beside each other."""

    tiles: tuple[FigureTile, ...]
    source: str = ""


@dataclass(frozen=True)
class DataTable:
    """A table of text. Where `keys` are given, a reader may sort it by clicking on the head of a column."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[float | str, ...], ...] = ()  # of every row and column: what it is sorted by
    note: str = ""
    source: str = ""
    caution: tuple[int, ...] = ()  # rows that a reader must not compare with others, such as a claim that fails


@dataclass(frozen=True)
class PictureFile:
    """A picture that is part of the report, as PNG bytes in base64."""

    title: str
    png: str
    summary: str
    source: str = ""


Block = Paragraph | Listing | FactSheet | Tiles | DataTable | Chart | PictureFile


@dataclass(frozen=True)
class Section:
    """A part of a report with a title and an anchor."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False  # whether a reader opens it first, as for long lists


@dataclass(frozen=True)
class Document:
    """A whole report. Section 1 is the first page, which stands alone when it is printed."""

    title: str
    subtitle: str
    audience: Literal["public", "owner"]
    sections: tuple[Section, ...]
    damage: tuple[str, ...] = ()  # what could not be read, in sentences; shown at the very top
    facts: dict[str, Any] = field(default_factory=dict)  # for programs: the numbers of the first page by name

    def charts(self) -> Iterator[Chart]:
        """Yield all charts in order."""
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Chart):
                    yield block

    def to_json(self) -> dict[str, Any]:
        """Return the document as a dictionary that JSON can hold; every block says its `kind`."""
        data = {k: v for k, v in asdict(self).items() if k != "sections"}
        sections = [
            {"id": s.id, "title": s.title, "folded": s.folded, "blocks": [_block(b) for b in s.blocks]}
            for s in self.sections
        ]
        return {"kind": "sordino report", **plain(data), "sections": sections}


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Chart):
        return {"block": "Chart", **block.to_json()}
    return {"block": type(block).__name__, **plain(asdict(block))}
