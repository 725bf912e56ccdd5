"""`sordino datasets`: list the benchmark datasets, or copy the table of one."""

from __future__ import annotations

import gzip
import json as jsonlib
from pathlib import Path
from typing import Any

import click

from sordino.core import plugin
from sordino.core.errors import DataError
from sordino.data import find
from sordino.data.sets.base import DatasetSource


def described(source: DatasetSource, data_dir: str | None) -> dict[str, Any]:
    """Return the description of a dataset, with its files or how to get them."""
    location = find.locate(source, data_dir)
    downloads = any(layout.downloads for layout in source.layouts)
    return {
        "dataset": source.name,
        "task": source.task,
        "train": source.records[0],
        "test": source.records[1],
        "clients": source.clients,
        "note": source.note,
        "licence": source.licence,
        "where": "not here" if location is None else location.where,
        "files": [] if location is None else [str(p) for p in location.paths],
        "bytes": None if location is None else location.size,
        "downloads": downloads,
        "how": None if location is not None else find.how(source, data_dir),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--data-dir", metavar="FOLDER", help="Where to look first (default: $SORDINO_DATA).")
@click.option("--copy", "wanted", nargs=2, metavar="NAME FILE", help="Write the table of a dataset to a CSV file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def datasets(data_dir: str | None, wanted: tuple[str, str] | None, as_json: bool) -> None:
    """List the benchmark datasets: what they are, and where they are or how to get them."""
    if wanted is not None:
        rows_written = copy(wanted[0], Path(wanted[1]), data_dir)
        click.echo(f"Wrote {rows_written:,} records of {wanted[0]} to {wanted[1]}")
        return
    rows = [described(plugin.load("data.sets", name), data_dir) for name in plugin.available("data.sets")]
    if as_json:
        click.echo(jsonlib.dumps(rows, indent=2))
        return
    _table(rows)
    missing = [row for row in rows if row["where"] == "not here"]
    for row in missing:
        how = (
            "is downloaded when it is first used; you can also add it yourself."
            if row["downloads"]
            else "cannot be downloaded."
        )
        click.echo(f"\n{row['dataset']} {how} {row['how']}")
    click.echo(
        "\nTo use your own data, give the path of an .npz, .csv, .csv.gz or .parquet file, or of a folder of images."
    )


def copy(name: str, target: Path, data_dir: str | None = None) -> int:
    """Write the table of a benchmark to a CSV file and return how many records it has; nothing is overwritten."""
    source: DatasetSource = plugin.load("data.sets", name)
    if target.exists():
        raise DataError(f"{target} exists and was left alone. Choose another name.")
    location = find.locate(source, data_dir)
    paths = [] if location is None else [p for p in location.paths if p.name.endswith((".csv", ".csv.gz"))]
    if len(paths) != 1:
        raise DataError(f"{name} is not here as one CSV file; --copy writes tables, such as breast-cancer.")
    find.obtain(source, data_dir)  # verifies the records
    data = paths[0].read_bytes()
    text = gzip.decompress(data) if paths[0].suffix == ".gz" else data
    target.write_bytes(text)
    return text.count(b"\n") - 1


def _table(rows: list[dict[str, Any]]) -> None:
    heads = ("dataset", "task", "train", "test", "clients", "size", "where", "licence")
    cells = [heads]
    for r in rows:
        size = "-" if r["bytes"] is None else f"{r['bytes'] / 1e6:,.2f} MB"
        clients = "-" if r["clients"] is None else f"{r['clients']:,}"
        records = (f"{r['train']:,}", f"{r['test']:,}")
        cells.append((r["dataset"], r["task"], *records, clients, size, r["where"], r["licence"]))
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    notes = ["", *(r["note"] for r in rows)]
    for row, note in zip(cells, notes, strict=True):
        right = range(2, 6)  # columns of numbers
        out = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        click.echo("  ".join(out).rstrip() + (f"  [{note}]" if note else ""))
