"""`sordino check`: check whether a configuration is private at all."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from pathlib import Path

import click

from sordino.advice import case, checks
from sordino.advice.finding import SEVERITIES, Finding
from sordino.core.errors import SpecError
from sordino.spec import spec


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--run", "folder", default=None, type=click.Path(path_type=Path), help="Check the spec of a run folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: Path | None, folder: Path | None, as_json: bool) -> None:
    """Look for anything that makes a run less private than it seems. The exit code is 1 if anything is broken."""
    if (file is None) == (folder is None):
        raise SpecError("give either a run file (TOML) or --run with a run folder.")
    examined = case.of_run(folder) if folder is not None else case.of_spec(spec.from_dict(spec.read(file or Path())))
    findings = checks.check(examined)
    broken = any(f.severity == "broken" for f in findings)
    unseen = [name for name in ("module", "data") if getattr(examined, name) is None]
    if as_json:
        out = {
            "checked": str(folder or file),
            "broken": broken,
            "findings": [asdict(f) for f in findings],
            "looked_at": checks.looked_at(),
            "not_looked_at": unseen,
        }
        click.echo(jsonlib.dumps(out, indent=2))
    else:
        _tell(str(folder or file), findings, unseen)
    sys.exit(1 if broken else 0)


def _tell(name: str, findings: list[Finding], unseen: list[str]) -> None:
    counts = {s: sum(f.severity == s for f in findings) for s in SEVERITIES}
    click.echo(f"{name}: {counts['broken']} broken, {counts['weak']} weak, {counts['note']} notes")
    for f in findings:
        click.echo(f"\n{f.severity}: {f.found}\n  why: {f.why}\n  fix: {f.fix}")
    if unseen:
        click.echo(f"\nNot checked, since it is not available: {' and '.join(unseen).replace('module', 'model')}.")
    head = "Nothing broken or weak was found." if not counts["broken"] + counts["weak"] else ""
    click.echo("\n" + f"{head} Checked: ".lstrip() + "; ".join(checks.looked_at().values()) + ".")
