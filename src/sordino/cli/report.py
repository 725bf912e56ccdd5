"""`sordino report`: the report of a run or a comparison, for the public or for the owner of the data."""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import click

from sordino.core.errors import RunError
from sordino.core.parts import PUBLIC
from sordino.report import files
from sordino.report.document import Document
from sordino.report.reading import find, harmless, name_of

FORMATS = ("html", "md", "json")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--for",
    "audience",
    type=click.Choice(("public", "owner")),
    default="public",
    show_default=True,
    help="Who reads it. The public report is made from the public part alone; the owner's also has what was not "
    "released.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default=None,
    help="A page for the browser (default), Markdown or JSON; the last two go to standard output without --out.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="The file to write, or an existing folder for one file per run. Default: report.html in the public or the "
    "private part of the run.",
)
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
@click.option("--verify", is_flag=True, help="Check the files against their seal, their signature and, with --for "
              "owner, the ledger; write nothing.")  # fmt: skip
@click.option(
    "--signers", type=click.Path(path_type=Path), help="With --verify: a file that says whose keys are whose."
)
@click.option("--sign", "key", type=click.Path(path_type=Path), help="First sign the seal with this key of OpenSSH.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json; with --verify, what was found.")
def report(
    runs: tuple[Path, ...],
    audience: str,
    form: str | None,
    out: Path | None,
    show: bool,
    verify: bool,
    signers: Path | None,
    key: Path | None,
    as_json: bool,
) -> None:
    """Write the report of every RUN, a run or a comparison: its guarantee, and what its records say.

    \b
    sordino report runs/first                      writes runs/first/public/report.html
    sordino report runs/first --for owner --open   writes runs/first/private/report.html and shows it
    sordino report runs/first --verify             checks the files against the seal of the run
    """
    owner = audience == "owner"
    if verify:
        if form or out or show or key:
            raise click.UsageError("--verify checks and writes nothing; leave out --format, --out, --open and --sign.")
        _verify(runs, owner, signers, as_json)
        return
    if signers is not None:
        raise click.UsageError("--signers belongs to --verify.")
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json asks for JSON, and --format for {form}; give one of them.")
    form = "json" if as_json else form or "html"
    if show and form != "html":
        raise click.UsageError("--open shows pages: leave out --format.")
    found = documents(runs, owner)
    if out is None and form != "html":
        if key is not None:
            raise click.UsageError("--sign goes with a report that is written: leave out --format, or name --out.")
        _print(found, form)
        return
    targets = _targets(runs, owner, form, out)
    for path in targets:
        files.check_target(path, owner)
    if key is not None:
        from sordino.cli.seal import sign

        for run in runs:
            sign(run, key)
        found = documents(runs, owner)  # they say that the seal is signed
    for path, document in zip(targets, found, strict=True):
        files.write(path, _text(document, form), owner)
        click.echo(f"Report: {path}")
    if show:
        _open(targets)


def _verify(runs: Sequence[Path], owner: bool, signers: Path | None, as_json: bool) -> None:
    from sordino.cli.seal import verify as check

    well = True
    for run in runs:
        if len(runs) > 1 and not as_json:
            click.echo(f"{harmless(str(run))}:")
        well = check(run, owner=owner, signers=signers, as_json=as_json) and well
    if not well:
        sys.exit(1)


def documents(runs: Sequence[Path], owner: bool) -> list[Document]:
    """Return the reports of runs and comparisons."""
    return [_document(run, owner) for run in runs]


def _document(path: Path, owner: bool) -> Document:
    from sordino.report import comparison

    if not comparison.is_comparison(path):
        return files.of_run(find(path), owner)
    if owner:
        raise RunError(
            f"{harmless(str(path))} is a comparison, whose page is made from public files alone. Leave out --for "
            f"owner, or name one of its runs in {harmless(str(path / 'cells'))}."
        )
    return comparison.document(path)


def _targets(runs: Sequence[Path], owner: bool, form: str, out: Path | None) -> list[Path]:
    """Return the file of every run."""
    if out is None:
        targets = [_home(run, owner) for run in runs]
    elif out.is_dir():
        targets = [out / f"{file_name(run)}{'-owner' if owner else ''}.{form}" for run in runs]
    elif len(runs) > 1:
        raise RunError(f"--out must be an existing folder for {len(runs)} reports; {harmless(str(out))} is none.")
    else:
        targets = [out]
    twice = [path for k, path in enumerate(targets) if path in targets[:k]]
    if twice:
        raise RunError(f"two of these reports would be written to {harmless(str(twice[0]))}. Write them one by one.")
    return targets


def _home(path: Path, owner: bool) -> Path:
    from sordino.report import comparison

    if not comparison.is_comparison(path):
        return files.home(find(path), owner)
    folder = comparison.find(path)
    return (folder / PUBLIC if (folder / PUBLIC).is_dir() else folder) / files.NAME


def folder_of(path: Path) -> Path:
    """Return the folder of the run or of the comparison that a path names."""
    from sordino.report import comparison

    return comparison.find(path) if comparison.is_comparison(path) else find(path)


def file_name(path: Path) -> str:
    """Return the name of a run or a comparison, as part of the name of a file."""
    return harmless(name_of(folder_of(path))).strip(".") or "report"


def _text(document: Document, form: str) -> str:
    if form == "html":
        from sordino.report.page import page

        return page(document)
    if form == "md":
        from sordino.report.markdown import markdown

        return markdown(document)
    return json.dumps(document.to_json(), indent=2, allow_nan=False) + "\n"


def _print(found: Sequence[Document], form: str) -> None:
    if form == "json" and len(found) > 1:
        click.echo(json.dumps([d.to_json() for d in found], indent=2, allow_nan=False))
        return
    for document in found:
        click.echo(_text(document, form), nl=False)


def _open(targets: Sequence[Path]) -> None:
    for path in targets:
        if not webbrowser.open(path.resolve().as_uri()):
            click.echo(f"No browser was found; open {path} yourself.", err=True)
            return
