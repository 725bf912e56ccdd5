"""`sordino shuffler`: the party between sites and server that mixes sealed rows."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--key", type=click.Path(path_type=Path), required=True, help="Its private key.")
@click.option("--new-key", is_flag=True, help="Write a new private key to --key, print its public key, and end.")
@click.option("--roster", type=click.Path(path_type=Path), default=Path("federation.toml"), help="Its own copy.")
@click.option("--least", type=int, help="Fewest reports that it mixes (default: shuffler_least of the roster).")
@click.option("--register", type=click.Path(path_type=Path), help="File of mixed batches (default: beside the key).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on (default: a free one).")
@click.option("--certificate", type=click.Path(path_type=Path), help="TLS certificate; without it rows are readable.")
@click.option("--key-file", type=click.Path(path_type=Path), help="Private key of the certificate.")
def shuffler(
    key: Path,
    new_key: bool,
    roster: Path,
    least: int | None,
    register: Path | None,
    host: str,
    port: int,
    certificate: Path | None,
    key_file: Path | None,
) -> None:
    """Mix the sealed rows of a federation's sites, so that its server does not learn who sent which.

    Run it where the server has no access: whoever holds both sees all. A batch with fewer than --least reports is
    refused, and so is a second batch of a round; keep the register.
    """
    from sordino.deploy.folder import read_roster
    from sordino.deploy.shuffling import shuffler_of
    from sordino.masking.shuffler import new_shuffler_key

    if new_key:
        click.echo(f'shuffler = "{new_shuffler_key(key)}"')
        return
    known, place = read_roster(roster), register or key.with_name("shuffled.sqlite")
    fewest = known.shuffler_least if least is None else least
    server = shuffler_of(known, key, fewest, place, (host, port), certificate, key_file)

    def end(*_: Any) -> None:
        server.close()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    click.echo("shuffler at {}:{}, for {} reports or more".format(*server.address, fewest))
    server.serve()
