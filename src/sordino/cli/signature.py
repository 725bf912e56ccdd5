"""Signatures of a seal by OpenSSH: `ssh-keygen -Y sign` and `ssh-keygen -Y verify`, in the namespace sordino-report.

A signature covers the bytes of seal.json, which has a hash of every public file. The key is any key of OpenSSH, also
one that an agent or a hardware token holds. No command here asks anything: it has no terminal, so that a key with a
passphrase is an error and not a program that waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sordino.core.errors import RunError
from sordino.report.reading import harmless
from sordino.run_folder.seal import SEAL, SIGNATURE

NAMESPACE = "sordino-report"
PROGRAM = "ssh-keygen"
LARGEST = 100_000  # bytes of a signature that is read; one of RSA with 16384 bits has 6,000
NAMES = 20  # of one key that are tried
SECONDS = 60.0  # that a hardware token has to be touched
KEY = re.compile(r"with (\S+) key (SHA256:[A-Za-z0-9+/=]+)")
MISSING = f"{PROGRAM} is not installed; it is part of OpenSSH, version 8.2 or newer"

# none: there is no signature. unchecked: it could not be checked. bad: it is of other bytes, or no signature at all.
# good: it is of this seal, by the key with this fingerprint; nobody vouches for the key. vouched: the file of signers
# names whose key it is. stranger: the file of signers does not name the key for this purpose.
Verdict = Literal["none", "unchecked", "bad", "good", "vouched", "stranger"]


@dataclass(frozen=True)
class SignatureReport:
    """What is known of the signature beside a seal."""

    verdict: Verdict
    fingerprint: str = ""  # of the key, as `ssh-keygen -l` shows it
    kind: str = ""  # of the key, such as ED25519
    signer: str = ""  # by the file of signers
    said: str = ""  # why it is bad or was not checked


def check_signature(public: Path, signers: Path | None = None) -> SignatureReport:
    """Check the signature beside a seal.

    Args:
        public: the folder that holds the seal.
        signers: a file that says whose keys are whose, in the format ALLOWED SIGNERS of ssh-keygen(1).

    Raises:
        RunError: if the file of signers cannot be read.
    """
    if signers is not None:
        _readable(signers)
    path = public / SIGNATURE
    if not os.path.lexists(path):
        return SignatureReport("none")
    try:
        signature, seal = plain_bytes(path), plain_bytes(public / SEAL, 100 * LARGEST)
    except OSError as error:
        return SignatureReport("bad", said=f"it cannot be read: {error.strerror or error}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / SIGNATURE
        copy.write_bytes(signature)
        try:
            answer = _ssh("check-novalidate", "-s", str(copy), content=seal)
        except RunError as error:
            return SignatureReport("unchecked", said=str(error).rstrip("."))
        key = KEY.search(answer.stdout)
        if answer.returncode or key is None:
            return SignatureReport("bad", said=_said(answer) or "it is not a signature of this seal")
        report = SignatureReport("good", key[2], key[1])
        return report if signers is None else _vouched(report, copy, signers, seal)


def _vouched(report: SignatureReport, signature: Path, signers: Path, seal: bytes) -> SignatureReport:
    """Return whose key it is, by the file of signers."""
    file = str(signers.absolute())
    try:
        named = _ssh("find-principals", "-s", str(signature), "-f", file, purpose=False)
        names = []
        for name in list(dict.fromkeys(named.stdout.splitlines()))[:NAMES]:
            answer = _ssh("verify", "-s", str(signature), "-f", file, "-I", name, content=seal)
            names += [harmless(name)] if not answer.returncode and KEY.search(answer.stdout) else []
    except RunError as error:
        return SignatureReport("unchecked", report.fingerprint, report.kind, said=str(error).rstrip("."))
    return SignatureReport("vouched" if names else "stranger", report.fingerprint, report.kind, ", ".join(names))


def make_signature(public: Path, key: Path) -> SignatureReport:
    """Sign the seal in a folder; a signature that is there already is replaced.

    Raises:
        RunError: if the key cannot be used, or there is nothing to sign with or to write to.
    """
    seal = public / SEAL
    try:
        with key.open("rb"):
            pass
        content = plain_bytes(seal, 100 * LARGEST)
    except OSError as error:
        raise RunError(f"cannot sign: {harmless(error.filename or str(key))}: {error.strerror or error}.") from error
    answer = _ssh("sign", "-f", str(key.absolute()), content=content)
    if answer.returncode or not answer.stdout.startswith("-----BEGIN SSH SIGNATURE-----"):
        raise RunError(f"cannot sign with {harmless(str(key))}: {_why(_said(answer))}")
    temporary = public / f"{SIGNATURE}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(answer.stdout)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(public / SIGNATURE)
    except OSError as error:
        raise RunError(f"cannot write {public / SIGNATURE}: {error.strerror or error}.") from error
    report = check_signature(public)
    if report.verdict != "good":
        raise RunError(f"the signature that was made does not fit the seal: {report.said or report.verdict}.")
    return report


def _why(said: str) -> str:
    if "passphrase" in said or "incorrect" in said:
        return (
            "it has a passphrase, and sordino asks for none. Load it by `ssh-add` and name its .pub file instead, so "
            "that the agent signs."
        )
    if "permissions" in said.lower():
        return "others may read it, so it is no longer a secret. Make it readable by you alone: chmod 600."
    if "load public key" in said or "invalid format" in said:
        return "it is not a private key that ssh-keygen can read. `ssh-keygen -t ed25519` makes one."
    if "agent" in said:
        return f"{said}. Is the agent running, and does it hold the key (`ssh-add -l`)?"
    return f"{said or 'ssh-keygen does not say why'}. `ssh-keygen -t ed25519` makes a key."


def _readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise RunError(f"cannot read the signers {harmless(str(path))}: {error.strerror or error}.") from error


def plain_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Return the contents of a plain file; a link, a pipe or a device is an OSError, and so is a very long file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "it is not a plain file", str(path))
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(0, f"it is longer than {most:,} bytes", str(path))
    return data


def _ssh(what: str, *words: str, content: bytes = b"", purpose: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `ssh-keygen -Y`, without a terminal."""
    command: Sequence[str] = (PROGRAM, "-Y", what, *(("-n", NAMESPACE) if purpose else ()), *words)
    quiet = {"LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}
    environment = {k: v for k, v in os.environ.items() if k not in ("SSH_ASKPASS", "DISPLAY")} | quiet
    try:
        done = subprocess.run(
            command, input=content, capture_output=True, timeout=SECONDS, start_new_session=True, env=environment
        )
    except FileNotFoundError as error:
        raise RunError(f"{MISSING}.") from error
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{PROGRAM} gave no answer for {SECONDS:g} seconds.") from error
    except OSError as error:
        raise RunError(f"{PROGRAM} cannot be run: {error.strerror or error}.") from error
    texts = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(command, done.returncode, *texts)


def _said(answer: subprocess.CompletedProcess[str]) -> str:
    """Return what ssh-keygen said, on one line."""
    lines = [line.strip(" \t\r@.") for line in (answer.stderr or answer.stdout).splitlines()]
    return harmless(": ".join(line for line in lines if line))[:300]
