"""The help of `sordino run`: what everyone needs and the chosen method's own keys on two screens, or everything."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sordino.core import plugin
from sordino.core.errors import SordinoError, SpecError
from sordino.spec import other_names, spec
from sordino.spec.keys import GROUPS

WIDTH = 100
ALL = "sordino.cli.run_help.all"  # in the meta data of a context: whether everything is shown

NEEDED = {  # heading -> keys
    "Your data": ("dataset", "label_column", "client_column", "user_column", "schema", "test", "clients", "partition"),
    "What is promised": ("epsilon", "delta", "unit", "viewer", "channel", "data_name"),
    "How it trains": (
        "method", "algorithm", "model", "rounds", "client_rate", "local_steps", "batch_size", "learning_rate",
    ),
    "The run": ("name", "out", "seed", "device", "baseline"),
}  # fmt: skip
SHORT = {  # where the help text of a key takes more than a line
    "dataset": "a path (.csv, .parquet, .npz, a folder of pictures), or a name: `sordino datasets`",
    "schema": "TOML file with the bounds and categories of a table's columns",
    "test": "a second file like the first, whose records are public",
    "clients": "number of clients that the records are dealt to, if no column names them",
    "partition": "how records are dealt: iid, natural, quantity:ALPHA, dirichlet:ALPHA, shards:LABELS",
    "epsilon": "total privacy budget of the whole run",
    "delta": "total delta of the whole run",
    "unit": "whose data are protected: record, client or user",
    "viewer": "against whom: server, public, client or server+N colluding clients",
    "channel": "direct, shuffler or secure-sum: what the server sees of the messages",
    "method": "who clips and adds noise: `sordino methods`",
    "algorithm": "how updates become a model: `sordino methods`",
    "model": "linear, mlp, cnn, ...: docs/models.md",
    "rounds": "number of federated rounds",
    "client_rate": "share of the clients expected in a round; 1 means all of them",
    "batch_size": "expected records per step (default: all of a client's)",
    "learning_rate": "learning rate of the clients",
    "seed": "makes the run repeatable, and its noise an experiment",
    "baseline": "afterwards, train the same model without privacy (public data only)",
    "out": "folder in which run folders are created",
}


class KeyCommand(click.Command):
    """A command whose options are keys of a run: unknown ones are explained, and help comes in two lengths."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; note the method that they name, for the help, and explain names of other tools."""
        ctx.max_content_width = WIDTH
        ctx.meta[self.name or ""] = _chosen(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if said := other_names.hint(error.option_name.lstrip("-")):
                raise SpecError(f"there is no option {error.option_name}: {_as_flag(said)}.") from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, grouped: those that everyone needs or, with --help-all, all of them."""
        options = {str(p.name): p for p in self.params if isinstance(p, click.Option)}
        chosen = ctx.meta.get(self.name or "", {})
        sections = _every(options) if ctx.meta.get(ALL) else _needed(options, chosen)
        known = _keys()
        own: Rows = [(o, None) for o in self.get_params(ctx) if isinstance(o, click.Option) and o.name not in known]
        mine: tuple[str, Rows] = ("Of this command", own)
        for heading, rows in (*sections, mine) if "method" in options else (mine, *sections):
            shown = [row for row in (_row(option, text, ctx) for option, text in rows) if row is not None]
            if shown:
                with formatter.section(heading):
                    formatter.write_dl(shown)


Rows = list[tuple[click.Option, str | None]]  # an option, and a text that replaces its help


def _keys() -> set[str]:
    """Return the names of all keys of a run: those that every run has, and those of methods and algorithms."""
    plugged = {
        f.name for kind in spec.PLUGINS for name in plugin.loadable(kind) for f in spec.plugin_fields(kind, name)
    }
    return {f.name for f in spec.fields()} | plugged


def _as_flag(said: str) -> str:
    """Return a hint with the key that it names written as a flag."""
    return said.replace("use ", "use --", 1).replace("_", "-") if said.startswith("use ") else said


def _row(option: click.Option, text: str | None, ctx: click.Context) -> tuple[str, str] | None:
    record = option.get_help_record(ctx)
    return None if record is None else (record[0], record[1] if text is None else text)


def _needed(options: dict[str, click.Option], chosen: dict[str, str]) -> list[tuple[str, Rows]]:
    defaults, texts = {f.name: f.default for f in spec.fields()}, plugin.field_help(spec.Spec) | SHORT
    sections: list[tuple[str, Rows]] = [
        (heading, [(options[key], _with_default(texts[key], defaults[key])) for key in keys if key in options])
        for heading, keys in NEEDED.items()
    ]
    for kind, key in zip(spec.PLUGINS, ("method", "algorithm"), strict=True):
        if key not in options:  # several are compared
            continue
        name = chosen[key]
        own = spec.plugin_help(kind, name)
        rows: Rows = [(options[f.name], _with_default(own[f.name], f.default)) for f in spec.plugin_fields(kind, name)]
        if rows:
            sections.append((f"Only for {name}" + ("" if key in chosen["given"] else f" (the default {key})"), rows))
    return sections


def _with_default(text: str, default: Any) -> str:
    if default is None or isinstance(default, bool) or "(default" in text:
        return text
    return f"{text} (default {default:g})" if isinstance(default, float) else f"{text} (default {default})"


def _every(options: dict[str, click.Option]) -> list[tuple[str, Rows]]:
    """Return all keys by group, then those of single methods and algorithms."""
    sections: list[tuple[str, Rows]] = []
    common = {f.name for f in spec.fields()}
    for group, keys in GROUPS.items():
        names = [name for name in typing.get_type_hints(keys) if name in options]
        sections.append(
            (f"{group}: {(keys.__doc__ or '').strip().rstrip('.')}", [(options[name], None) for name in names])
        )
    others: Rows = [(options[name], None) for name in sorted(_keys() - common) if name in options]
    return [*sections, ("Only for some methods and algorithms, which are named", others)]


def _chosen(args: Sequence[str]) -> dict[str, str]:
    """Return the method and algorithm that the arguments or their file name; "given" lists which of them do."""
    values: dict[str, Any] = {}
    for word in args:
        if word.endswith(".toml") and Path(word).is_file():
            try:
                values = {k: v for k, v in spec.read(Path(word)).items() if k in ("method", "algorithm")}
            except SpecError:
                break
    for key in ("method", "algorithm"):
        for i, word in enumerate(args):
            if word == f"--{key}" and i + 1 < len(args):
                values[key] = args[i + 1]
            elif word.startswith(f"--{key}="):
                values[key] = word.partition("=")[2]
    given = " ".join(values)
    method = str(values.get("method", spec.Spec.method))
    try:
        algorithm = str(values.get("algorithm", plugin.load("methods", method).algorithm))
        plugin.load("algorithms", algorithm)
    except SordinoError:  # said when the arguments are read
        method, algorithm = spec.Spec.method, spec.Spec.algorithm
    return {"method": method, "algorithm": algorithm, "given": given}


def _show_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


help_all = click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Show every key, by group."
)
