"""`sordino datasets`: list the benchmark datasets."""

from __future__ import annotations

import json as jsonlib
from typing import Any

import click

from sordino.core import plugin
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def datasets(data_dir: str | None, as_json: bool) -> None:
    """List the benchmark datasets: what they are, and where they are or how to get them."""
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
