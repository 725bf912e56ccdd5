"""A shuffler returns every row once, in a random order, and refuses whatever would single out a sender."""

from __future__ import annotations

import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from json import dumps
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from scipy.stats import chisquare

from sordino.core.errors import SpecError
from sordino.masking import frames, wire
from sordino.masking import shuffler as module
from sordino.masking.errors import MaskingError
from sordino.masking.once import Once
from sordino.masking.sealed import box, pad, seal, unbox, unpad
from sordino.masking.session import Session
from sordino.masking.shuffler import RowShuffler, new_shuffler_key
from sordino.masking.shuffler_process import ShufflerServer, ask_shuffler
from support.masked_sums import SESSION, identity, refused, roster

SECRET = X25519PrivateKey.generate()


def shuffler(least=3, once=None, members=5) -> RowShuffler:
    return RowShuffler(SECRET, "hospitals", roster(members), least, once or Once())


def batch(members=4, session=SESSION, length=20, text=None):
    public = SECRET.public_key().public_bytes_raw().hex()
    rows = {m: text or f"row {m}".encode() for m in range(members)}
    return {m: seal(r, length, public, m, identity(m), session) for m, r in rows.items()}


def test_every_row_comes_out_once_without_its_sender():
    rows = shuffler().shuffle(SESSION, batch())
    assert sorted(rows) == [b"row 0", b"row 1", b"row 2", b"row 3"]


def test_all_orders_are_equally_likely(monkeypatch):
    """Twenty-four orders, 4800 batches; a shuffle that leaves a row in its place too often is seen."""
    at, sealed, orders = shuffler(), batch(), Counter()
    opened = [f"row {m}".encode() for m in range(4)]
    # the order alone is of interest, and signatures take time
    monkeypatch.setattr(module, "unseal", lambda row, secret, member, *rest: pad(opened[member], 20))
    for number in range(4800):
        rows = at.shuffle(Session("hospitals", "job", number, "train"), sealed)
        orders[tuple(rows)] += 1
    assert len(orders) == 24 and chisquare(list(orders.values())).pvalue > 1e-6
    first = Counter(order[0] for order in orders.elements())
    first[b"row 0"] += 400
    assert chisquare(list(first.values())).pvalue < 1e-2


def test_sealed_rows_have_one_length_and_hide_theirs():
    public = SECRET.public_key().public_bytes_raw().hex()
    sizes = {len(seal(bytes(n), 50, public, 0, identity(0), SESSION)) for n in (0, 7, 50)}
    assert len(sizes) == 1
    assert seal(b"a", 9, public, 0, identity(0), SESSION) != seal(b"a", 9, public, 0, identity(0), SESSION)
    assert refused(lambda: seal(bytes(51), 50, public, 0, identity(0), SESSION), "longer")
    assert refused(lambda: seal(b"", 50, "zz", 0, identity(0), SESSION), "64")
    assert refused(lambda: seal(b"", 50, "00" * 32, 0, identity(0), SESSION), "not valid")
    assert refused(lambda: seal(b"", -1, public, 0, identity(0), SESSION))
    assert unpad(pad(b"row", 9)) == b"row"
    assert refused(lambda: unpad(pad(b"row", 9)[:-1] + b"x"), "padded")
    assert refused(lambda: unpad(b"\xff\xff\xff\xff"), "padded")


def test_a_row_can_be_hidden_from_the_shuffler_too():
    at_server = X25519PrivateKey.generate()
    inner = box(b"row", at_server.public_key().public_bytes_raw(), SESSION)
    assert unbox(inner, at_server, SESSION) == b"row"
    assert refused(lambda: unbox(inner, SECRET, SESSION), "not made for this key")
    assert refused(lambda: unbox(inner, at_server, Session("hospitals", "job-7", 4, "train")), "not made")
    assert refused(lambda: unbox(inner[:40], at_server, SESSION), "short")


def test_batches_that_a_shuffler_refuses():
    other = Session("hospitals", "job-7", 4, "train")
    at, good = shuffler(), batch()
    foreign = Session("banks", "job-7", 3, "train")
    assert refused(lambda: at.shuffle(SESSION, batch(2)), "least")
    assert refused(lambda: at.shuffle(foreign, batch(session=foreign)), "federation")
    assert refused(lambda: at.shuffle(SESSION, good | {1: batch(session=other)[1]}), "another federation, job, round")
    assert refused(lambda: at.shuffle(SESSION, good | {1: batch(length=21)[1]}), "one length")
    assert refused(lambda: at.shuffle(SESSION, good | {1: good[2]}), "another sender")  # twice the same row
    assert refused(lambda: at.shuffle(SESSION, good | {1: good[1][:-1] + b"x"}), "not signed")
    renamed = good[2][: wire.HEAD] + wire.NUMBER.pack(1) + good[2][wire.HEAD + 4 :]
    assert refused(lambda: at.shuffle(SESSION, good | {1: renamed}), "not signed")
    assert refused(lambda: at.shuffle(SESSION, good | {9: good[1]}), "another sender")
    assert refused(lambda: at.shuffle(SESSION, good | {1: batch(text=b"other length")[1]}), "one length")
    assert len(at.shuffle(SESSION, good)) == 4  # refusals changed nothing
    assert refused(lambda: at.shuffle(SESSION, good), "twice")
    assert refused(lambda: at.shuffle(SESSION, batch(3)), "twice")  # a smaller batch would show who is missing
    for least in (1, 6, True, 2.5):
        with pytest.raises(SpecError):
            shuffler(least)


def test_a_finished_batch_is_remembered_before_rows_leave(tmp_path):
    class Dies(Once):
        def claim(self, name, value, again=True):
            super().claim(name, value, again)
            raise KeyboardInterrupt  # the process ends between the register and the rows

    path = tmp_path / "done.db"
    with pytest.raises(KeyboardInterrupt):
        shuffler(once=Dies(path)).shuffle(SESSION, batch())
    assert refused(lambda: shuffler(once=Once(path)).shuffle(SESSION, batch()), "twice")


@contextmanager
def listening(at: RowShuffler, **settings):
    server = ShufflerServer(at, **settings)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server.address
    finally:
        server.close()
        thread.join()


def raw(address, data: bytes) -> bytes:
    with socket.create_connection(address, 5) as peer:
        peer.sendall(data)
        with suppress(OSError):  # the shuffler may have hung up already
            peer.shutdown(socket.SHUT_WR)
        out = b""
        try:
            while piece := peer.recv(1 << 16):
                out += piece
        except ConnectionResetError:
            pass
    return out


def test_a_shuffler_behind_a_port():
    with listening(shuffler(), most_bytes=5000, seconds=5) as address:
        for junk in (b"", b"x", b"\xff" * 100, frames.LENGTH.pack(3) + b"abc", frames.LENGTH.pack(2**32 - 1)):
            reply = raw(address, junk)
            assert b"Traceback" not in reply and len(reply) < 200
        assert refused(lambda: ask_shuffler(address, (SESSION, batch(2))), "least")
        assert sorted(ask_shuffler(address, (SESSION, batch()))) == [f"row {m}".encode() for m in range(4)]
        assert refused(lambda: ask_shuffler(address, (SESSION, batch())), "twice")
        other = Session("hospitals", "job-7", 9, "train")
        assert refused(lambda: ask_shuffler(address, (other, batch(4, other, 2000))), "5000 are the most")
        assert refused(lambda: ask_shuffler(address, (other, batch(4, other)), most_bytes=10), "are the most")
    assert refused(lambda: ask_shuffler(address, (SESSION, batch()), seconds=2), "does not answer")


def test_a_full_disk_of_the_shuffler_is_told_to_its_operator_alone(tmp_path, monkeypatch, capfd):
    once = Once(tmp_path / "done.db")

    def full():
        raise sqlite3.OperationalError("database or disk is full")

    with listening(shuffler(once=once), seconds=5) as address:
        with monkeypatch.context() as patched:
            patched.setattr(once, "_opened", full)
            with pytest.raises(MaskingError, match="its operator must look at it") as error:
                ask_shuffler(address, (SESSION, batch()))
        assert "done.db" not in str(error.value) and "disk is full" not in str(error.value)
        assert "done.db cannot be written: database or disk is full" in capfd.readouterr().err
        assert len(ask_shuffler(address, (SESSION, batch()))) == 4  # nothing had left, so with space it mixes


def certificate(folder) -> Path:
    """Write a certificate for 127.0.0.1 that signs itself, with its key, and return the file."""
    key, name = Ed25519PrivateKey.generate(), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shuffler")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    host = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = built.add_extension(host, critical=False).sign(key, None)
    path = folder / "shuffler.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(made.public_bytes(Encoding.PEM) + private)
    return path


def test_a_shuffler_behind_tls_and_a_server_that_checks_its_certificate(tmp_path):
    file = certificate(tmp_path)
    inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inside.load_cert_chain(file)
    with listening(shuffler(), tls=inside, seconds=5) as address:
        trusting, strange = ssl.create_default_context(cafile=file), ssl.create_default_context()
        assert refused(lambda: ask_shuffler(address, (SESSION, batch()), strange), "does not answer")
        assert refused(lambda: ask_shuffler(address, (SESSION, batch()), None, seconds=5))  # no TLS at all
        assert len(ask_shuffler(address, (SESSION, batch()), trusting)) == 4


def test_a_slow_or_broken_peer_does_not_hold_the_shuffler():
    class Broken:
        def shuffle(self, session, sealed):
            raise ZeroDivisionError("secret row")

    with listening(Broken(), seconds=0.3) as address:
        slow = [socket.create_connection(address) for _ in range(4)]
        start = time.monotonic()
        assert refused(lambda: ask_shuffler(address, (SESSION, batch()), seconds=5), "its operator")
        assert time.monotonic() - start < 3
        for peer in slow:
            peer.close()


def test_the_shuffler_runs_as_a_process(tmp_path):
    public = new_shuffler_key(tmp_path / "key")
    (tmp_path / "roster.json").write_text(dumps({m: identity(m).public for m in range(4)}))
    command = [sys.executable, "-m", "sordino.masking.shuffler_process", "--federation", "hospitals", "--least", "4"]
    command += ["--key", str(tmp_path / "key"), "--roster", str(tmp_path / "roster.json")]
    command += ["--register", str(tmp_path / "done.db")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline().split()
        host, port = line[2].rstrip(",").split(":")
        assert line[-1] == public
        sealed = {m: seal(b"%d" % m, 5, public, m, identity(m), SESSION) for m in range(4)}
        assert sorted(ask_shuffler((host, int(port)), (SESSION, sealed))) == [b"0", b"1", b"2", b"3"]
    finally:
        process.terminate()
        process.communicate()
    failed = subprocess.run([*command, "--least", "1"], capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.startswith("error: ") and "Traceback" not in failed.stderr
