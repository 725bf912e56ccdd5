"""Certificates: the chain holds, names and dates are right, and a foreign authority is not trusted."""

from __future__ import annotations

import os
import ssl
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from sordino.core.errors import RunError, SpecError
from sordino.deploy import certificates as c
from sordino.deploy import start
from sordino.deploy.folder import Folder


def handshake(folder, name: str, trusted: str = "ca") -> None:
    """Let a client that trusts one authority talk to a server of this name; raise ssl.SSLError if it does not."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "crt", folder / "key")
    client = ssl.create_default_context(cafile=str(folder / trusted))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as newer versions of Python set it
    down, up = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(down, up, server_hostname=name)
    called = server.wrap_bio(up, down, server_side=True)
    for _ in range(5):
        for side in (caller, called):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert caller.version() in ("TLSv1.2", "TLSv1.3")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = c.new_authority("trial", 30)
    key, certificate = c.issue(authority, "server", ("fl.example.org", "10.1.2.3", *c.LOOPBACK), 30)
    c.write_key(folder / "key", key)
    c.write_certificate(folder / "crt", certificate)
    c.write_certificate(folder / "ca", authority.certificate)
    c.write_certificate(folder / "other", c.new_authority("trial", 30).certificate)  # of the same name
    return folder, authority, certificate


@pytest.mark.parametrize("name", ["fl.example.org", "10.1.2.3", "localhost", "127.0.0.1"])
def test_a_client_with_the_authority_trusts_every_name_that_is_dialled(files, name):
    handshake(files[0], name)


@pytest.mark.parametrize("name", ["example.org", "x.fl.example.org", "10.1.2.4"])
def test_it_trusts_no_other_name(files, name):
    with pytest.raises(ssl.SSLError):
        handshake(files[0], name)


def test_it_trusts_no_other_authority(files):
    with pytest.raises(ssl.SSLError):
        handshake(files[0], "localhost", "other")


@pytest.mark.parametrize(
    ("hosts", "name"),
    [(("fl.example.org", *c.LOOPBACK), "fl.example.org"), (c.LOOPBACK, "127.0.0.1")],
    ids=["the server, dialled by a node", "a site's loopback port, dialled by its apps"],
)
@pytest.mark.parametrize("days", [1, 0])
def test_an_expired_certificate_is_refused(tmp_path, hosts, name, days):
    authority = c.new_authority("trial", 30)
    key, certificate = c.issue(authority, "it", hosts, days)  # 0 days: valid until now
    c.write_key(tmp_path / "key", key)
    c.write_certificate(tmp_path / "crt", certificate)
    c.write_certificate(tmp_path / "ca", authority.certificate)
    if days:
        handshake(tmp_path, name)
        return
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(tmp_path, name)


def test_an_expired_authority_vouches_for_nobody(tmp_path):
    authority = c.new_authority("trial", 0)
    key, certificate = c.issue(authority, "server", c.LOOPBACK, 30)
    c.write_key(tmp_path / "key", key)
    c.write_certificate(tmp_path / "crt", certificate)
    c.write_certificate(tmp_path / "ca", authority.certificate)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(tmp_path, "localhost")


def test_what_a_certificate_says(files):
    _, authority, certificate = files
    certificate.verify_directly_issued_by(authority.certificate)
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)
    assert certificate.not_valid_before_utc < datetime.now(UTC)
    extensions = certificate.extensions
    assert extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    above = authority.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert above.critical and above.value == x509.BasicConstraints(ca=True, path_length=0)


def test_a_secret_is_never_open_to_others_not_even_under_a_careless_umask(tmp_path):
    seen = []
    before = os.umask(0)
    try:
        c.write_secret(tmp_path / "key", b"secret")
        seen.append(stat.S_IMODE((tmp_path / "key").stat().st_mode))
    finally:
        os.umask(before)
    assert seen == [0o600]
    with pytest.raises(FileExistsError):  # nor is one overwritten
        c.write_secret(tmp_path / "key", b"other")


@pytest.mark.parametrize("host", ["fl.example.org", "localhost", "10.0.0.1", "::1", "fe80::1"])
def test_names_and_addresses_are_hosts(host):
    assert c.check_host(host) == host


@pytest.mark.parametrize("host", ["", "a b", "x:1", "-x", "1.2.3", "a..b", "x/y", 'x"', "a" * 300, "x\n"])
def test_other_words_are_no_hosts(host):
    with pytest.raises(SpecError):
        c.check_host(host)


def test_an_expired_federation_says_so(tmp_path):
    certificate = _expired(c.new_authority("old", 1))
    (tmp_path / "server").mkdir()
    c.write_certificate(tmp_path / "server" / "server.crt", certificate)
    with pytest.raises(RunError, match="expired on 20"):
        start.check_certificates(Folder(tmp_path))


def _expired(authority: c.Authority) -> x509.Certificate:
    then = datetime.now(UTC) - timedelta(days=2)
    name = x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(authority.certificate.subject)
    builder = builder.public_key(authority.key.public_key()).serial_number(1)
    builder = builder.not_valid_before(then).not_valid_after(then + timedelta(days=1))
    return builder.sign(authority.key, hashes.SHA256())
