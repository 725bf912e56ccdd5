"""The two ends of a shuffler of its own: the server that asks it, and the process that it runs as."""

from __future__ import annotations

import ssl
from pathlib import Path

from sordino.core.errors import SpecError
from sordino.deploy import roster as rosters
from sordino.deploy.folder import Roster
from sordino.deploy.gathering import Mix
from sordino.masking.once import Once
from sordino.masking.shuffler import RowShuffler, read_shuffler_key
from sordino.masking.shuffler_process import ShufflerServer, ask_shuffler


def mix_at(address: str, authority: str = "") -> Mix | None:
    """Return how the server has rows mixed by the shuffler at HOST:PORT; None if no address is given.

    Args:
        address: host and port.
        authority: PEM file by which the certificate of the shuffler is checked; "": no encryption.
    """
    if not address:
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SpecError(f"the address of a shuffler is HOST:PORT, not {address!r}.")
    place = (host.strip("[]"), int(port))
    tls = None
    if authority:
        try:
            tls = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise SpecError(f"cannot read the certificate {authority} for the shuffler: {error}.") from error
    return lambda session, sealed: ask_shuffler(place, (session, sealed), tls)


def shuffler_of(
    roster: Roster,
    key: Path,
    least: int,
    register: Path,
    address: tuple[str, int],
    certificate: Path | None = None,
    key_file: Path | None = None,
) -> ShufflerServer:
    """Return a shuffler for the sites of a roster, which listens at an address.

    Args:
        roster: the sites, from the shuffler's own copy of federation.toml.
        key: file with its private key.
        least: the fewest reports that it mixes.
        register: file of batches that were mixed; it must survive a restart.
        address: host and port.
        certificate: TLS certificate chain; None: no encryption.
        key_file: private key of the certificate; None: it is in the same file.
    """
    secret = read_shuffler_key(key)
    if roster.shuffler is not None and roster.shuffler != secret.public_key().public_bytes_raw().hex():
        raise SpecError(f"{key} is not the key of the shuffler that the roster names: use the key that belongs to it.")
    if least < roster.shuffler_least:
        raise SpecError(
            f"the roster promises sites batches of {roster.shuffler_least} reports or more, and --least is {least}: "
            f"use --least {roster.shuffler_least}."
        )
    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            tls.load_cert_chain(certificate, key_file)
        except OSError as error:
            raise SpecError(f"cannot use the certificate {certificate}: {error}.") from error
    shuffler = RowShuffler(secret, roster.name, rosters.keys(roster), least, Once(register))
    try:
        return ShufflerServer(shuffler, address, tls)
    except OSError as error:
        raise SpecError(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}.") from error
