"""`sordino partition show`: show how a partition distributes records over clients."""

from __future__ import annotations

import json as jsonlib
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from sordino.core import check
from sordino.core.rng import Ints, Stream
from sordino.data.load import Columns, Dataset, load
from sordino.data.partition import parse
from sordino.report.axes import save

NOTICE = "Label counts of private data are private: draw them only if you may see the data."
SHADES = " ·░▒▓█"
MOST_ROWS, MOST_COLUMNS = 60, 40  # largest numbers of clients and labels printed to a terminal


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def partition() -> None:
    """Show how records are distributed over clients."""


@partition.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dataset", required=True, metavar="NAME", help="A benchmark, or the path of a file.")
@click.option("--partition", "law", required=True, metavar="LAW",
              help="iid, natural[:K], dirichlet:ALPHA, shards:K or quantity:ALPHA.")  # fmt: skip
@click.option(
    "--clients", default=20, show_default=True, help="Number of clients (a natural partition has its own number)."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the partition.")
@click.option("--data-dir", metavar="FOLDER", help="Folder in which the data are looked for first.")
@click.option("--label-column", metavar="COLUMN", help="Name of the column with the labels, for your own table.")
@click.option("--client-column", metavar="COLUMN", help="Name of the column with the clients, for your own table.")
@click.option("--schema", metavar="FILE", help="File with the schema, for your own table.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw a figure (.png, .pdf, .svg).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    dataset: str,
    law: str,
    clients: int,
    seed: int,
    data_dir: str | None,
    label_column: str | None,
    client_column: str | None,
    schema: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show how many records of each label every client has."""
    asked = parse(law)
    check.count(clients=clients)
    stream = Stream.research(seed).at("partition")
    if plot is not None:
        from sordino.cli.epsilon_plot import ready

        ready(plot)
    data = load(dataset, data_dir, columns=Columns(label=label_column, client=client_column, schema=schema))
    parts = asked.split(data.y_train.numpy(), data.client_train, clients, stream)
    names, counts = table(data, parts)
    title = f"{data.name}, {asked}, {len(parts)} clients, seed {seed}"
    if plot is not None:
        draw(plot, title, names, counts)
    if as_json:
        output = {"dataset": data.name, "partition": str(asked), "clients": len(parts), "seed": seed, "notice": NOTICE,
                 "sizes": [len(p) for p in parts], "labels": names, "counts": counts.tolist()}  # fmt: skip
        click.echo(jsonlib.dumps(output))
        return
    _print(title, names, counts, [len(p) for p in parts])
    if plot is not None:
        click.echo(f"Drawn in {plot}.")
    click.echo(NOTICE)


def table(data: Dataset, parts: list[Ints]) -> tuple[list[str], Ints]:
    """Return the names of the labels and the number of records of each client and label [clients, labels].

    Targets of a regression are counted in ten equal bins between their extremes. For next-token data, only the records
    of each client are counted.
    """
    y = data.y_train.numpy()
    if data.task == "next-token":
        return ["records"], np.array([[len(p)] for p in parts])
    if data.task == "regression":
        edges = np.linspace(float(y.min()), float(y.max()) + 1e-9, 11)
        y = np.clip(np.searchsorted(edges, y, side="right") - 1, 0, 9)
        names = [f"{a:.3g} to {b:.3g}" for a, b in pairwise(edges)]
    else:
        names = list(data.names) or [str(i) for i in range(data.classes or int(y.max()) + 1)]
    return names, np.stack([np.bincount(y[p], minlength=len(names)) for p in parts])


def _print(title: str, names: list[str], counts: Ints, sizes: list[int]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{escape(title)}[/bold]")
    groups = np.array_split(np.arange(len(names)), min(len(names), MOST_COLUMNS))
    shares = np.stack([counts[:, g].sum(axis=1) for g in groups], axis=1) / np.maximum(counts.sum(axis=1), 1)[:, None]
    width, top = len(str(len(counts) - 1)), max(float(shares.max()), 1e-9)
    wide = max(len(f"{max(sizes):,}"), 7)
    if len(names) > 1:
        console.print(f"{'client':>{width + 6}} {'records':>{wide}}  {''.join(_head(g[0]) for g in groups)}")
    for client, row in list(enumerate(shares))[:MOST_ROWS]:
        cells = "".join(_shade(v / top) for v in row) if len(names) > 1 else _bar(sizes[client], max(sizes))
        console.print(f"{client:>{width + 6}} {sizes[client]:>{wide},}  [cyan]{cells}[/cyan]")
    if len(shares) > MOST_ROWS:
        console.print(f"... and {len(shares) - MOST_ROWS} more clients (--json has all).")
    if len(names) > 1:
        every = f", {len(groups[0])} labels per column" if len(names) > MOST_COLUMNS else ""
        console.print(f"Columns are labels{every}; a full block is {top:.0%} of a client's records.")
        if len(names) <= MOST_COLUMNS and any(n != str(i) for i, n in enumerate(names)):
            console.print(escape("Labels: " + ", ".join(f"{i} {n}" for i, n in enumerate(names))))
    low, mid, high = np.quantile(sizes, [0, 0.5, 1])
    console.print(f"Records per client: at least {low:,.0f}, median {mid:,.0f}, at most {high:,.0f}.")


def _head(label: int) -> str:
    return f"{label % 100:<3d}"


def _shade(share: float) -> str:
    """Return the shading of a share relative to the largest: blank for 0, a dot below a tenth, then blocks."""
    step = 0 if share == 0 else 1 if share < 0.1 else 2 + min(3, int(4 * share))
    return SHADES[step] * 2 + " "


def _bar(size: int, most: int) -> str:
    return "█" * max(1, round(40 * size / most))


def draw(path: Path, title: str, names: list[str], counts: NDArray[np.int64]) -> None:
    """Draw the labels of the clients as a heat map [labels, clients], with the clients' sizes above it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    clients, labels = counts.shape
    sizes = counts.sum(axis=1)
    width, height = min(14.0, max(7.0, 0.3 * clients)), min(7.0, max(2.5, 0.3 * labels))
    with pyplot.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        if labels == 1:
            figure, top = pyplot.subplots(figsize=(width, 3.5), layout="constrained")
            low = top
        else:
            figure, (top, low) = pyplot.subplots(
                2, 1, figsize=(width, 2.0 + height), height_ratios=[1.5, height], sharex=True, layout="constrained"
            )
            shown = low.imshow(counts.T, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
            figure.colorbar(shown, ax=low, label="records", pad=0.01, ticks=MaxNLocator(integer=True))
            low.set_ylabel("label")
            if labels <= MOST_COLUMNS:
                low.set_yticks(range(labels), [n if len(n) < 24 else n[:22] + ".." for n in names])
        top.bar(range(clients), sizes, color="#1f5f99", width=0.9 if clients <= 200 else 1.0)
        top.set(ylabel="records", title=title)
        low.set_xlabel("client")
        low.xaxis.set_major_locator(MaxNLocator(integer=True))
        save(pyplot, figure, path)
