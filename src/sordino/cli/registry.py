"""`sordino ledger`: the commands for the registry as a whole: backups, keys, other registries, erasure."""

from __future__ import annotations

from pathlib import Path

import click

from sordino.core.errors import RunError, SpecError
from sordino.ledger import forget as forgetting
from sordino.ledger import home, transfer
from sordino.ledger.ledger import Ledger
from sordino.spec import spec

HELP = {"help_option_names": ["-h", "--help"]}
PATH = click.Path(path_type=Path)
ledger_option = click.option(
    "--ledger", "file", default=None, type=PATH, metavar="FILE", help="Default: the registry of this user."
)


def chosen(file: Path | None, old: Path | None = None) -> Path:
    """Return the ledger that a command uses: the file of --ledger, or the registry of this user.

    Args:
        file: the value of --ledger.
        old: the ledger as an argument without a flag, as `show` and `verify` took it in earlier versions.
    """
    if old is not None:
        click.echo(
            f"sordino: write --ledger {old}: a ledger without a flag will not be accepted much longer.", err=True
        )
        if file is not None:
            raise SpecError("the ledger is given twice: with and without --ledger.")
    return home.registry() if file is None and old is None else file or old or Path()


@click.command(context_settings=HELP)
@click.argument("target", metavar="FILE", type=PATH)
@ledger_option
def backup(target: Path, file: Path | None) -> None:
    """Copy the ledger and its units into FILE, one archive; the key is not included."""
    book = Ledger(chosen(file), "write")
    try:
        transfer.backup(book, target)
        entries = book.chain.head()[0]
    finally:
        book.close()
    click.echo(f"{target}: {entries} entries and the units of {book.path}.")
    click.echo(f"The key is not in it: {home.key_file()}. Keep a copy elsewhere: `sordino ledger key export FILE`.")


@click.command(context_settings=HELP)
@click.argument("source", metavar="FILE", type=PATH)
def restore(source: Path) -> None:
    """Restore a backup, on another machine or after a loss; an existing registry is never overwritten."""
    target = transfer.restore(source)
    click.echo(f"{target} was restored from {source}.")
    if home.read_key() is None:
        click.echo(f"Its key is still missing ({home.key_file()}): `sordino ledger key import FILE`.")


@click.command(context_settings=HELP)
@click.argument("source", metavar="FILE", type=PATH)
@ledger_option
def merge(source: Path, file: Path | None) -> None:
    """Import the charges of another registry (its ledger, its folder or a backup); jobs in both count once."""
    number, notes = transfer.merge(chosen(file), source)
    click.echo(f"{chosen(file)}: {number} charges are new.")
    for note in notes:
        click.echo(f"sordino: {note}", err=True)


@click.command("import", context_settings=HELP)
@click.argument("source", metavar="PATH", type=PATH)
@click.option(
    "--data-name", default=None, metavar="NAME", help="The name of the data in it, if it is the same for all."
)
@ledger_option
def import_(source: Path, data_name: str | None, file: Path | None) -> None:
    """Import the charges of a ledger.sqlite of an earlier version, each once."""
    if data_name is not None:
        name(data_name)
    number, notes = transfer.import_old(chosen(file), source, data_name)
    click.echo(f"{chosen(file)}: {number} charges of {source} are new.")
    for note in notes:
        click.echo(f"sordino: {note}", err=True)


@click.command(context_settings=HELP)
@click.argument("first", metavar="NAME")
@click.argument("second", metavar="OTHER")
@ledger_option
def distinct(first: str, second: str, file: Path | None) -> None:
    """Declare that the data of two names are of different people whose rows merely coincide: they no longer add up."""
    book = Ledger(chosen(file), "write")
    try:
        known = book.data()
        entry = book.declare_distinct(*(each if each in known else name(each) for each in (first, second)))
    finally:
        book.close()
    click.echo(f"{book.path}, row {entry.id}: {first} and {second} are different people.")


@click.command(context_settings=HELP)
@click.option("--user", default=None, metavar="ID", help="A user, by the id in the user column.")
@click.option("--client", default=None, metavar="ID", help="A client, by the id in the client column.")
@click.option("--rows", default=None, type=PATH, metavar="FILE", help="The rows of a table with the same columns.")
@click.option("--label-column", default=None, metavar="COLUMN", help="With --rows: as in the run.")
@click.option("--split-column", default=None, metavar="COLUMN", help="With --rows: as in the run.")
@click.option("--user-column", default=None, metavar="COLUMN", help="With --rows: as in the run.")
@click.option("--client-column", default=None, metavar="COLUMN", help="With --rows: as in the run.")
@ledger_option
def forget(
    user: str | None,
    client: str | None,
    rows: Path | None,
    label_column: str | None,
    split_column: str | None,
    user_column: str | None,
    client_column: str | None,
    file: Path | None,
) -> None:
    """Erase a person's hashes everywhere; charges remain, and the ledger notes the erasure without the id."""
    if sum(given is not None for given in (user, client, rows)) != 1:
        raise SpecError("give one of --user, --client and --rows.")
    columns = (label_column, split_column, user_column, client_column)
    if rows is None and any(columns):
        raise SpecError("columns can be given only with --rows.")
    book = Ledger(chosen(file), "write")
    try:
        if rows is not None:
            gone, strange = forgetting.by_rows(book, rows, *columns)
        else:
            gone, strange = forgetting.by_id(book, *(("user", user) if user is not None else ("client", str(client))))
    finally:
        book.close()
    if not gone:
        what = "these rows" if rows is not None else f"{'user' if user is not None else 'client'} {user or client!r}"
        raise RunError(
            f"{book.path} knows nothing about {what}, so nothing was erased. Write ids and columns as they are in the "
            "table of the run; rows need the same columns and the same --label-column."
        )
    click.echo(f"{book.path}: {gone} hashes were erased; charges stay.")
    if rows is None:
        click.echo("Hashes of single rows can be found only by the rows themselves: use --rows FILE.")
    if strange:
        click.echo(f"sordino: {strange} sets were made with another key and cannot be searched.", err=True)


@click.group(context_settings=HELP)
def key() -> None:
    """Export or import the key of the units, or make a new one after a loss."""


@key.command(context_settings=HELP)
@click.argument("target", metavar="FILE", type=PATH)
def export(target: Path) -> None:
    """Write the key to FILE, readable by its owner alone."""
    stored_key = home.read_key()
    if stored_key is None:
        raise RunError(f"there is no key {home.key_file()}.")
    if not home.write_key(stored_key, target):
        raise RunError(f"{target} exists already. Choose another file.")
    click.echo(f"{target}: the key {stored_key.id}. Whoever has it can look for people in the units.")


@key.command("import", context_settings=HELP)
@click.argument("source", metavar="FILE", type=PATH)
def import_key(source: Path) -> None:
    """Install the key from FILE; another key that exists already is never overwritten."""
    stored_key = home.read_key(source)
    if stored_key is None:
        raise RunError(f"there is no key {source}.")
    if not home.write_key(stored_key, home.made(home.key_file())) and home.read_key() != stored_key:
        raise RunError(f"there is already another key: {home.key_file()}. Move it away first.")
    click.echo(f"{home.key_file()}: the key {stored_key.id}.")


@key.command(context_settings=HELP)
def new() -> None:
    """Make a new key after the old one was lost: data of earlier runs can then be compared by name only."""
    if (stored_key := home.read_key()) is not None:
        raise RunError(f"there is already a key: {home.key_file()} ({stored_key.id}).")
    click.echo(f"{home.key_file()}: the key {home.new_key().id}. Data of earlier runs can be compared by name only.")


def name(text: str) -> str:
    """Return the text if it is a valid name for data; raise SpecError otherwise."""
    if not spec.NAME.match(text):
        raise SpecError(
            f"a data name must be 1 to 64 letters, digits, '.', '_' or '-' and start with a letter or digit, "
            f"not {text!r}."
        )
    return text


COMMANDS = (backup, restore, merge, import_, distinct, forget, key)
