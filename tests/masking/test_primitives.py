"""Shamir's shares, masks, fixed point, key files, the register: each against a second way or a wrong answer."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chisquare

from sordino.core.errors import SpecError
from sordino.masking import keystream, shamir
from sordino.masking.errors import MaskingError
from sordino.masking.fields import MaskedField, centred, layout_of, reduce_words, residues
from sordino.masking.fixed_point import FixedPoint
from sordino.masking.identity import Identity, KeyRoster
from sordino.masking.keystream import Binding
from sordino.masking.once import Once
from sordino.masking.session import Session, joined
from sordino.masking.shuffler import new_shuffler_key, read_shuffler_key
from sordino.masking.threshold import SumPolicy
from support.masked_sums import SESSION, clients, refused, server


def test_any_threshold_of_shares_rebuild_a_secret_and_fewer_do_not():
    secret = secrets.token_bytes(32)
    shares = dict(enumerate(shamir.deal(secret, 3, 5), 1))
    for chosen in itertools.combinations(shares, 3):
        assert shamir.rebuild({x: shares[x] for x in chosen}, 3) == secret
    with pytest.raises(MaskingError, match="cannot be rebuilt from 2"):
        shamir.rebuild({x: shares[x] for x in (1, 2)}, 3)
    with suppress(MaskingError):  # a polynomial of too low a degree gives something else
        assert shamir.rebuild({x: shares[x] for x in (1, 2)}, 2) != secret


def test_shares_below_the_threshold_fit_every_secret():
    """For two shares of three and any guess of the secret there is a third share that fits: they exclude nothing."""
    shares = dict(enumerate(shamir.deal(bytes(32), 3, 3), 1))
    for guess in (1, 2**255, 2**256 - 1):
        three = shamir.weights([1, 2, 3])
        rest = guess - three[1] * shamir.number(shares[1]) - three[2] * shamir.number(shares[2])
        third = rest * pow(three[3], -1, shamir.PRIME) % shamir.PRIME
        fits = {1: shares[1], 2: shares[2], 3: third.to_bytes(shamir.SIZE, "little")}
        assert int.from_bytes(shamir.rebuild(fits, 3), "little") == guess


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32], ids=["least", "largest"])
def test_extreme_secrets_and_a_thousand_shares(secret):
    shares = shamir.deal(secret, 667, 1000)
    assert len(set(shares)) == 1000
    last = {x: shares[x - 1] for x in range(334, 1001)}
    assert shamir.rebuild(last, 667) == secret


def test_the_field_is_a_field():
    assert all(pow(a, shamir.PRIME - 1, shamir.PRIME) == 1 for a in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
    assert shamir.PRIME > 2**256


def test_bad_shares_and_thresholds_are_refused():
    assert refused(lambda: shamir.deal(b"short", 2, 3))
    assert refused(lambda: shamir.deal(bytes(32), 4, 3))
    assert refused(lambda: shamir.deal(bytes(32), 0, 3))
    assert refused(lambda: shamir.weights([1, 1]), "same point")
    assert refused(lambda: shamir.weights([0, 1]), "point")
    assert refused(lambda: shamir.number(b"\xff" * 33), "field")
    assert refused(lambda: shamir.number(bytes(32)), "field")


@pytest.mark.parametrize("bits", [1, 3, 8, 13, 16])
def test_masks_are_uniform_over_the_full_ring(bits):
    """Every value of the ring appears as often as any other, the largest included, which some protocols never draw."""
    size = 200 << min(bits, 12) if bits < 16 else 1 << 20
    layout = layout_of({"x": (size,)}, {"x": bits})
    words = {"x": np.zeros(size, layout[0].container)}
    keystream.add_private_mask(words, layout, bytes(32), Binding(SESSION, b"a", 1))
    reduce_words(words, layout)
    cells = min(bits, 8)  # compare the upper bits, and the lower ones
    for part in (words["x"] >> (bits - cells), words["x"] & (2**cells - 1)):
        counts = np.bincount(part, minlength=2**cells)
        assert len(counts) == 2**cells and chisquare(counts).pvalue > 1e-4
        short = np.bincount(part[part != part.max()], minlength=2**cells)
        assert chisquare(short).pvalue < 1e-4  # a ring without its largest value is seen
    assert words["x"].max() == 2**bits - 1


@pytest.mark.parametrize("bits", [32, 47, 62])
def test_masks_reach_the_top_of_a_wide_ring(bits):
    layout = layout_of({"x": (1 << 16,)}, {"x": bits})
    words = {"x": np.zeros(1 << 16, layout[0].container)}
    keystream.add_private_mask(words, layout, bytes(32), Binding(SESSION, b"a", 1))
    reduce_words(words, layout)
    assert 2**bits * (1 - 2**-12) < words["x"].max() < 2**bits
    assert chisquare(np.bincount((words["x"] >> (bits - 6)).astype(int), minlength=64)).pvalue > 1e-4


def test_masks_of_a_pair_cancel_and_others_differ():
    layout = layout_of({"x": (1000,), "y": (1000,)}, {"x": 32, "y": 32})
    other_round = Session("hospitals", "job-7", 4, "train")

    def mask(secret=b"k" * 32, session=SESSION, agreement=b"a", me=1, other=2):
        words = {name: np.zeros(1000, "<u4") for name in "xy"}
        keystream.add_pair_mask(words, layout, secret, Binding(session, agreement, me), other)
        return words

    first = mask()
    assert (first["x"] + mask(me=2, other=1)["x"] == 0).all()  # uint32 wraps
    different = [first["x"], first["y"], mask(secret=b"l" * 32)["x"], mask(session=other_round)["x"]]
    different += [mask(agreement=b"b")["x"], mask(other=3)["x"]]
    assert all((a != b).mean() > 0.99 for a, b in itertools.combinations(different, 2))


def test_no_key_of_the_keystream_is_used_twice(monkeypatch):
    """Over three rounds with two fields: each pair's key at both ends and each private key at one end, and no more."""
    used: Counter[bytes] = Counter()
    real = keystream.add_keystream
    monkeypatch.setattr(
        keystream, "add_keystream", lambda words, key, sign: (used.update([key]), real(words, key, sign))
    )
    bits = {"a": 8, "b": 32}
    for number in range(3):
        session = Session("hospitals", "job-7", number, "train")
        people = clients(4, SumPolicy(4), session)
        at = server(4, SumPolicy(4), session, layout_of({"a": (3,), "b": (2,)}, bits))
        peers = at.keys({m: c.keys() for m, c in people.items()})
        dealt = at.shares({m: c.shares(peers) for m, c in people.items()})
        arrays = {"a": np.zeros(3, int), "b": np.zeros(2, int)}
        for m, c in people.items():
            c.masked(dealt[m], arrays, bits)
    assert Counter(used.values()) == {2: 3 * 2 * 6, 1: 3 * 2 * 4}


def test_long_and_short_arrays_have_the_keystream_of_aes():
    """Chunks join without a seam: a second way, in one piece."""
    for size in (0, 1, 65_535, 65_536, 65_537, 200_001):
        words = np.zeros(size, "<u4")
        keystream.add_keystream(words, b"q" * 32, 1)
        whole = Cipher(algorithms.AES(b"q" * 32), modes.CTR(bytes(16))).encryptor().update(bytes(4 * size))
        assert words.tobytes() == whole
        keystream.add_keystream(words, b"q" * 32, -1)
        assert not words.any()


def test_residues_and_signed_numbers():
    layout = layout_of({"x": (4,)}, {"x": 5})
    words = residues({"x": np.array([-16, -1, 15, 16])}, layout)
    assert words["x"].tolist() == [16, 31, 15, 16] and words["x"].dtype == np.uint8
    assert centred(words, layout)["x"].tolist() == [-16, -1, 15, -16]
    wide = layout_of({"x": (2,)}, {"x": 62})
    assert centred(residues({"x": np.array([2**63 - 1, -(2**63)])}, wide), wide)["x"].tolist() == [-1, 0]
    assert residues({"x": np.array([2**64 - 1, 7], np.uint64)}, wide)["x"].tolist() == [2**62 - 1, 7]
    assert refused(lambda: MaskedField("x", 0, (1,)))
    assert refused(lambda: MaskedField("x", 62, (1 << 40,)), "larger")


def test_fixed_point_keeps_its_error_and_refuses_what_could_wrap():
    rng, fixed = np.random.default_rng(1), FixedPoint(members=50)
    rows = rng.normal(0, 100, (50, 1000))
    total = fixed.decode(sum(fixed.encode(r) for r in rows))
    exact = np.array([float(sum(map(Fraction, column))) for column in rows.T])
    assert np.abs(total - exact).max() <= 50 * fixed.error + 1e-11
    assert np.abs(total - exact).max() > fixed.error  # the bound is not idle
    assert fixed.encode(np.array([fixed.largest, -fixed.largest])).tolist() == [
        int(fixed.largest * 2**32),
        -int(fixed.largest * 2**32),
    ]
    assert 50 * int(fixed.encode(np.array([fixed.largest]))[0]) < 2**61
    for bad in (fixed.largest * (1 + 1e-9), 1e300, -1e300, np.inf, np.nan):
        assert refused(lambda bad=bad: fixed.encode(np.array([bad])))
    assert refused(lambda: fixed.encode(np.array([1])), "floating")
    assert fixed.encode(np.zeros((0,))).shape == (0,)
    assert fixed.encode(np.array([0.5], np.float32)).tolist() == [2**31]
    assert FixedPoint(1).encode(np.array([FixedPoint(1).largest]))[0] < 2**61
    for bad in ((0,), (2, 63), (2, 10, 10), (2**61, 62, 3)):
        with pytest.raises(SpecError):
            FixedPoint(*bad)


def test_signatures_hold_for_one_purpose_in_one_session():
    identity = Identity.new()
    known = KeyRoster({3: identity.public, 4: Identity.new().public})
    signature = identity.sign("keys", SESSION, b"payload")
    assert known.signed(3, "keys", SESSION, b"payload", signature)
    others = [Session("h", "job-7", 3, "train"), Session("hospitals", "job", 3, "train")]
    others += [Session("hospitals", "job-7", 2, "train"), Session("hospitals", "job-7", 3, "score")]
    assert not any(known.signed(3, "keys", session, b"payload", signature) for session in others)
    assert not known.signed(4, "keys", SESSION, b"payload", signature)
    assert not known.signed(5, "keys", SESSION, b"payload", signature)
    assert not known.signed(3, "upload", SESSION, b"payload", signature)
    assert not known.signed(3, "keys", SESSION, b"payloaD", signature)
    assert not known.signed(3, "keys", SESSION, b"payload", b"short")
    assert "0x" not in repr(identity) and identity.secret.private_bytes_raw().hex() not in repr(identity)


def test_parts_are_joined_without_ambiguity():
    forms = [("ab", "c"), ("a", "bc"), ("abc",), (b"ab", "c"), (1, 2), (12,), ("1", "2"), ("", "abc")]
    assert len({joined(*form) for form in forms}) == len(forms)
    for bad in (
        ("", "j", 0, "p"),
        ("f", "j", -1, "p"),
        ("f", "j", True, "p"),
        ("f", "j", 0, "p" * 300),
        (1, "j", 0, "p"),
    ):
        assert refused(lambda bad=bad: Session(*bad))


def test_private_keys_lie_in_files_that_nobody_else_can_read(tmp_path):
    identity, path = Identity.new(), tmp_path / "identity.key"
    old = os.umask(0)
    try:
        identity.write(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Identity.read(path).public == identity.public
    assert refused(lambda: Identity.new().write(path), "never replaced")
    assert refused(lambda: read_shuffler_key(path), "shuffler private key")  # another kind of key
    path.chmod(0o640)
    assert refused(lambda: Identity.read(path), "chmod 600")
    link = tmp_path / "link"
    link.symlink_to(path)
    for wrong in (link, tmp_path, tmp_path / "none"):
        assert refused(lambda wrong=wrong: Identity.read(wrong))
    short = tmp_path / "short"
    short.write_text("sordino identity private key 1\nabc\n")
    short.chmod(0o600)
    assert refused(lambda: Identity.read(short), "does not hold")
    public = new_shuffler_key(tmp_path / "shuffler.key")
    assert read_shuffler_key(tmp_path / "shuffler.key").public_key().public_bytes_raw().hex() == public


def test_a_register_outlives_its_process(tmp_path):
    path = tmp_path / "once.db"
    Once(path).claim("a", b"1")
    Once(path).claim("a", b"1")
    assert refused(lambda: Once(path).claim("a", b"2"), "twice")
    assert refused(lambda: Once(path).claim("a", b"1", again=False), "twice")
    Once(path).claim("b", b"2", again=False)
    (tmp_path / "text").write_text("not a database, but a text that is long enough to be taken for one" * 20)
    assert refused(lambda: Once(tmp_path / "text"), "register")
    assert refused(lambda: Once(tmp_path / "no" / "folder"), "register")


def test_masking_needs_no_torch():
    code = "import sordino.masking.server, sordino.masking.shuffler_process, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
