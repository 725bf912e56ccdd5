"""`sordino run` and `sordino resume`: train, or continue an interrupted run."""

from __future__ import annotations

import json as jsonlib
import math
import typing
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from sordino.advice import startup
from sordino.cli import baseline, figures
from sordino.cli.completion import completes
from sordino.cli.progress import RunProgress
from sordino.cli.run_help import KeyCommand, help_all
from sordino.core import plugin
from sordino.core.parts import PUBLIC
from sordino.core.record import plain as finite
from sordino.core.rounding import up
from sordino.report import files
from sordino.run_folder import boundary
from sordino.run_folder.folder import RunFolder
from sordino.runs import early
from sordino.runs.baseline import without_privacy
from sordino.runs.build import from_spec
from sordino.runs.describe import describe
from sordino.runs.job import Job
from sordino.runs.run import Result, execute, resume_spec, summary
from sordino.spec import spec
from sordino.spec.values import parse


def all_flags() -> dict[str, tuple[Any, str]]:
    """Return the type and help text of every flag: the fields of a Spec, then those of all methods and algorithms."""
    hints = typing.get_type_hints(spec.Spec)
    spec_help = plugin.field_help(spec.Spec)
    flags = {f.name: (hints[f.name], spec_help[f.name]) for f in spec.fields()}
    texts: dict[str, dict[str, list[str]]] = {}  # key -> meaning -> plug-ins that use the key in this meaning
    for kind in spec.PLUGINS:
        names = plugin.loadable(kind)
        for name in [n for n in names if plugin.ours(kind, n)] + [n for n in names if not plugin.ours(kind, n)]:
            plugin_hints, text = typing.get_type_hints(plugin.load(kind, name)), spec.plugin_help(kind, name)
            for f in spec.plugin_fields(kind, name):
                flags.setdefault(f.name, (plugin_hints[f.name], ""))
                texts.setdefault(f.name, {}).setdefault(text.get(f.name, ""), []).append(name)
    said = {
        k: sorted(meanings.items(), key=lambda m: -len(m[1])) for k, meanings in texts.items()
    }  # the most frequent meaning first
    help_texts = {k: "; ".join(f"{t} ({', '.join(who)})" for t, who in meanings) for k, meanings in said.items()}
    return {k: (hint, help_texts.get(k, help)) for k, (hint, help) in flags.items()}


def _hints(values: dict[str, Any]) -> dict[str, Any]:
    """Return the type of every key; the chosen method and algorithm come before others with the same key."""
    out = {name: hint for name, (hint, _) in all_flags().items()}
    method = str(values.get("method", spec.Spec.method))
    algorithm = str(values.get("algorithm", plugin.load("methods", method).algorithm))
    for kind, name in zip(spec.PLUGINS, (method, algorithm), strict=True):
        plugin_hints = typing.get_type_hints(plugin.load(kind, name))
        out |= {f.name: plugin_hints[f.name] for f in spec.plugin_fields(kind, name)}
    return out


def with_flags(flags: dict[str, tuple[Any, str]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds these keys as options to a command."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, (hint, text) in reversed(flags.items()):
            flag = "--" + name.replace("_", "-")
            if hint is bool:
                command = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)(command)
            else:
                command = click.option(
                    flag, name, default=None, help=text, metavar="VALUE", shell_complete=completes(name)
                )(command)
        return command

    return add


@click.command(cls=KeyCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a progress bar.")
@help_all
@with_flags(all_flags())
def run(file: Path | None, as_json: bool, **flags: Any) -> None:
    """Train privately, on the embedded dataset or as described in FILE (TOML). Flags override the file.

    \b
    sordino run --dataset patients.csv --label-column ill --epsilon 2
    sordino run my.toml --seed 3          (`sordino init my.toml` writes a file with every key)
    sordino run --method dp-fedavg --help (that method's own keys; --help-all has every key)
    """
    values: dict[str, Any] = spec.read(file) if file is not None else {}
    given = {name: value for name, value in flags.items() if value is not None}
    hints = _hints(values | given)
    values |= {k: v if isinstance(v, bool) else parse(k, v, hints[k]) for k, v in given.items()}
    wanted = spec.from_dict(values)
    early.check_folders(wanted)
    _go(lambda: from_spec(wanted), None, as_json)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a progress bar.")
def resume(folder: Path, as_json: bool) -> None:
    """Continue an interrupted run, given its folder."""
    _go(lambda: resume_spec(folder), folder, as_json)


def _go(make: Callable[[], Job], at: Path | None, as_json: bool) -> None:
    progress = RunProgress(quiet=as_json)
    with progress.preparing():
        job = make()
    result, plain = _train(job, at, progress), None
    if job.spec.baseline and job.method.private:
        progress.say("The same model and features without privacy:")
        with progress.preparing("Choosing a learning rate for the run without privacy ..."):
            twin = without_privacy(job)
        plain = _train(twin, None, progress)
        baseline.publish(result.folder, plain)
        files.automatic(plain.folder)
    report = files.automatic(result.folder)
    if as_json:
        output = finite(_as_json(job, result, plain))
        boundary.check_output(output)
        click.echo(jsonlib.dumps(output, indent=2, allow_nan=False))
    else:
        _tell(job, result, plain, progress)
        progress.say(report)


def _train(job: Job, at: Path | None, progress: RunProgress) -> Result:
    progress.start(job)
    for line in startup.lines(job):
        progress.say(line)
    if at is None:
        progress.estimate(job)
    watch, canaries = partial(progress.after_round, job), None
    if job.planted is not None:
        from sordino.red_team.planted_canaries import CanaryWatch  # only audited runs need it

        canaries = CanaryWatch(job)
    with progress.rounds(job):
        result = execute(job, own_model=False, at=at, watch=watch, began=progress.began, observe=canaries)
    return _audited(job, result, canaries, at is not None, progress)


def _audited(job: Job, result: Result, canaries: Any, resumed: bool, progress: RunProgress) -> Result:
    """Audit a finished run whose spec asks for it, and write what was found; the result is returned as it is."""
    if not job.spec.audit:
        return result
    from sordino.cli.audit import publish
    from sordino.red_team import audit

    with progress.preparing("Auditing the run on made-up records ..."):
        found = audit.audit(job)
    if canaries is not None and not resumed:  # a resumed run was seen in part only
        found = replace(found, planted=canaries.lower(job.spec.delta, audit.each(found.confidence)))
    publish(RunFolder(result.folder), job, found)
    return result


def _as_json(job: Job, result: Result, plain: Result | None) -> dict[str, Any]:
    out = {"folder": str(result.folder)} | summary(job, result) | {"plan": describe(job)}
    out |= {} if (audited := _audit_of(result)) is None else {"audit": audited}
    return out | ({"accuracy_without_privacy": plain.accuracy} if plain is not None else {})


def _audit_of(result: Result) -> dict[str, Any] | None:
    """Return the public audit of a run, if it was audited."""
    path = result.folder / PUBLIC / "audit.json"
    return jsonlib.loads(path.read_text()) if path.is_file() else None


def _tell(job: Job, result: Result, plain: Result | None, progress: RunProgress) -> None:
    say = progress.say
    say("")
    for note in result.notes:
        if note not in job.notes:  # those were said before the run
            say(f"Note: {note}")
    if (claim := job.method.claim(job.plan)) is not None:
        say(claim.sentence())
    say(accounted(result.guarantee.sentence(), result.guarantee.reason, claim is not None))
    if (audited := _audit_of(result)) is not None:
        say(str(audited["sentence"]))
    for viewer, other in result.guarantees.items():
        if viewer != job.viewer and (job.method.private or math.isfinite(other.epsilon)):
            say(
                f"Against the {viewer}: epsilon = {up(other.epsilon)}"
                + (f" ({other.reason})." if other.reason else ".")
            )
    if result.together is not None:
        say(f"{result.together[0].upper()}{result.together[1:]}.")
    for line in figures.lines(job, result):
        say(line)
    if plain is not None and plain.accuracy is not None:
        say(f"Accuracy without privacy: {100 * plain.accuracy:.2f} %")
    say(f"Run folder: {result.folder} (to hand out: {result.folder / PUBLIC}; the rest is for you alone)")


def accounted(sentence: str, reason: str | None, claimed: bool) -> str:
    """Return the sentence of a guarantee, without its reason if that was already given with a claim.

    Args:
        sentence: the sentence.
        reason: why there is no guarantee, if there is none.
        claimed: whether a claim was printed before, with the reason why it does not hold.
    """
    known = f": {reason}."
    return sentence.removesuffix(known) + ", as stated above." if claimed and sentence.endswith(known) else sentence
