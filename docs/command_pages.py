"""The pages of the reference on commands and on the keys of a run, from what the command line itself says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import click
from docstrings import escaped

from sordino.cli import run_help
from sordino.cli.main import COMMANDS, cli
from sordino.core import plugin
from sordino.spec import spec
from sordino.spec.keys import GROUPS

COMMANDS_HEAD = """(commands)=
# Commands and flags

`sordino COMMAND --help` prints what is on this page. Every command takes `-h` and `--help`. A flag that is also a key
of a run file is described under [keys of a run](keys.md).
"""
KEYS_HEAD = """(keys)=
# Keys of a run

A run is described by keys. Each key is a line of a run file (TOML, written by `sordino init`), a flag of `sordino run`
with dashes for underscores (`--client-rate 0.1`), and a keyword of [`sordino.train`](#sordino.train)
(`client_rate=0.1`). A flag wins over the file.
"""


def anchor(text: str) -> str | None:
    """Return the anchor of the command that a piece of code calls, such as `sordino plan --epsilon 2`."""
    words = text.split()
    return f"sordino-{words[1]}" if len(words) > 1 and words[0] == "sordino" and words[1] in COMMANDS else None


def commands() -> str:
    """Return the page of all commands."""
    rows = "\n".join(
        f"| [`{name}`](#sordino-{name}) | {escaped(text, anchor)} |" for name, (_, text) in COMMANDS.items()
    )
    parts = [COMMANDS_HEAD, f"| command | what it does |\n| --- | --- |\n{rows}"]
    context = click.Context(cli, info_name="sordino")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += _command(command, click.Context(command, info_name=name, parent=context), 2)
    return "\n\n".join(parts) + "\n"


def _command(command: click.Command, context: click.Context, level: int) -> list[str]:
    """Return the section of a command, and those of its subcommands."""
    path = context.command_path
    parts = [f"({path.replace(' ', '-')})=\n{'#' * level} {path}"]
    usage = " ".join(["sordino", *path.split()[1:], *command.collect_usage_pieces(context)])
    parts += [f"```text\n{usage}\n```", *_help(command.help)]
    options = [p for p in command.get_params(context) if isinstance(p, click.Option) and not p.hidden]
    known = run_help._keys() if isinstance(command, run_help.KeyCommand) else set()
    own = [o for o in options if o.name not in known and "--help" not in o.opts]
    if own:
        rows = "\n".join(f"| {_flag(o)} | {_cell(_said(o, context))} |" for o in own)
        parts.append(f"| flag | what it does |\n| --- | --- |\n{rows}")
    if len(own) < len([o for o in options if "--help" not in o.opts]):
        parts.append("It also takes the [keys of a run](keys.md) as flags.")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            if part is not None and not part.hidden:
                parts += _command(part, click.Context(part, info_name=name, parent=context), level + 1)
    return parts


def _help(text: str | None) -> list[str]:
    """Return the paragraphs of a help text; those that click must not wrap are shown as they stand."""
    parts = []
    for block in re.split(r"\n[ ]*\n", inspect.cleandoc(text or "")):
        if block.startswith("\b"):
            parts.append("```text\n" + inspect.cleandoc(block[1:].strip("\n")) + "\n```")
        elif block.strip():
            parts.append(escaped(block, anchor))
    return parts


def _flag(option: click.Option) -> str:
    names = "/".join(option.secondary_opts)
    text = ", ".join(option.opts) + (f" / {names}" if names else "")
    if option.is_flag or option.count:
        return f"`{text}`"
    what = (
        option.metavar or option.type.get_metavar(option, click.Context(click.Command("x"))) or option.type.name.upper()
    )
    return _cell(f"`{text} {what}`")


def _said(option: click.Option, context: click.Context) -> str:
    text = escaped(option.help or "", anchor)
    shown = option.get_help_extra(context).get("default")
    return f"{text} Default: `{shown}`." if shown else text


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def keys() -> str:
    """Return the page of all keys, by group, and of the keys of single methods and algorithms."""
    parts = [KEYS_HEAD]
    texts = plugin.field_help(spec.Spec)
    for group, holder in GROUPS.items():
        rows = [(f.name, _type(f), f.default, texts.get(f.name, "")) for f in dataclasses.fields(holder)]
        parts += [f"(keys-{group})=\n## {group.capitalize()}", escaped(holder.__doc__ or "", anchor), _rows(rows)]
    for kind in spec.PLUGINS:
        parts.append(f"## Keys of single {kind}\n\nThey exist where one of the {kind} in the last column is chosen.")
        found: dict[tuple[str, str, str, str], list[str]] = {}
        for name in plugin.available(kind):
            if plugin.ours(kind, name):
                for field in spec.plugin_fields(kind, name):
                    said = spec.plugin_help(kind, name).get(field.name, "")
                    what = (field.name, _type(field), _shown(field.default), said)
                    found.setdefault(what, []).append(name)
        rows_of = []
        for (key, of, default, said), names in sorted(found.items()):
            links = ", ".join(f"[{name}](#{kind}-{name})" for name in names)
            rows_of.append(f"| `{key}` | {_cell(of)} | {_cell(default)} | {_cell(escaped(said, anchor))} | {links} |")
        head = f"| key | type | default | what it is | {kind} |\n| --- | --- | --- | --- | --- |\n"
        parts.append(head + "\n".join(rows_of))
    return "\n\n".join(parts) + "\n"


def _rows(rows: list[tuple[str, str, Any, str]]) -> str:
    lines = [
        f"| `{key}` | {_cell(of)} | {_cell(_shown(default))} | {_cell(escaped(said, anchor))} |"
        for key, of, default, said in rows
    ]
    return "| key | type | default | what it is |\n| --- | --- | --- | --- |\n" + "\n".join(lines)


def _type(field: dataclasses.Field[Any]) -> str:
    """Return the type of a key in words, as it is written in a file."""
    text = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
    words = {"str": "text", "bool": "true or false", "int": "whole number", "float": "number", "None": ""}
    parts = [part.strip() for part in text.split("|")]
    said = [words.get(part, "list of text" if part.startswith("tuple[str") else part) for part in parts]
    return ", ".join(part for part in said if part)


def _shown(default: Any) -> str:
    if default is None or default is dataclasses.MISSING:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`" if default != "" else ""
