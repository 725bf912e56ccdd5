"""Keys and certificates of a federation: a private authority, the server, the sites' loopback ports and node keys.

All keys are elliptic (P-256 for TLS; P-384 in OpenSSH form for the nodes, as Flower asks; Ed25519 for the identity with
which a site signs). Certificates are not mutual: a site proves itself by signing each request with its node key.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino.core.errors import SpecError
from sordino.masking.identity import Identity

LOOPBACK = ("localhost", "127.0.0.1")
HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\Z"
)
CLOCKS = timedelta(minutes=10)  # by which the clock of a site may be behind


@dataclass(frozen=True)
class Authority:
    """A certificate authority that exists for one federation."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def check_host(host: str) -> str:
    """Return the host if it is a DNS name or an IP address; raise SpecError otherwise."""
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        if not HOST.match(host) or re.fullmatch(r"[0-9.]+", host):
            raise SpecError(f"the host must be a name or an IP address without a port, not {host!r}.") from error
    return host


def new_authority(name: str, days: int) -> Authority:
    """Make an authority for the federation of this name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Sordino {name}"[:64])])
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def issue(
    authority: Authority, name: str, hosts: tuple[str, ...], days: int
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Issue a server certificate that is valid for these hosts (names or IP addresses)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    names = x509.SubjectAlternativeName([_alternative(host) for host in dict.fromkeys(hosts)])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(subject, authority.certificate.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_key, critical=False)
    )
    return key, builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(now + timedelta(days=days))
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that its owner alone can read; it is never readable by others, not even for a moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(content)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the private key of a certificate as PEM."""
    form = serialization.PrivateFormat.PKCS8
    write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Write a certificate as PEM."""
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_node_key(path: Path, comment: str) -> None:
    """Write a new node key in OpenSSH form, and its public half beside it with the suffix .pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + f" {comment}\n".encode())


def write_identity(path: Path) -> str:
    """Write a new identity, with which a site signs its answers, and return its public key."""
    identity = Identity.new()
    identity.write(path)
    return identity.public


def expires(path: Path) -> datetime:
    """Return when a certificate stops being valid."""
    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
