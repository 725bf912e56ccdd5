"""Random numbers made on a GPU: the kernels against other implementations, and the logic around them on any machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from sordino.core import gpu_random
from sordino.core.rng import RowStream, Stream, box_muller, picked
from sordino.privacy import rounded_normal
from sordino.privacy.clip import Bounded
from sordino.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from sordino.privacy.rounded_normal import settle

CPU = torch.device("cpu")
KEY = bytes(range(7, 39))
IDS = (0, 5, 2**40 + 3, -1)
SECURE = Stream(bytes(range(32)), secure=True)
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def by_processor(key, ids, n, start=0):
    """What `chacha_words` gives, from the processor's ChaCha20."""
    rows = [gpu_random.host_words(key, int(i), n, start).view(np.int64) for i in ids]
    return torch.from_numpy(np.stack(rows).copy())


@pytest.fixture
def pretended(monkeypatch):
    """A processor that is taken for a GPU with kernels."""
    monkeypatch.setattr(gpu_random, "ready", lambda device: True)
    monkeypatch.setattr(gpu_random, "chacha_words", by_processor)
    monkeypatch.setattr(gpu_random, "philox_words", philox_by_torch)


def philox_by_torch(key, ids, n):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_random, "ready", lambda device: False)
        return RowStream(Stream(key, False), ids.numpy())._words(CPU, n)


def test_words_are_those_of_the_published_cipher_and_can_be_entered_anywhere():
    """RFC 8439, appendix A.1, test vectors 1 and 2: a key, nonce and counter of zeros, and the next block."""
    words = gpu_random.host_words(bytes(32), 0, 16).tobytes()
    assert words[:16].hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert words[64:80].hex() == "9f07e7be5551387a98ba977c732d080d"
    whole = gpu_random.host_words(KEY, 2**40 + 3, 100)
    assert (gpu_random.host_words(KEY, 2**40 + 3, 20, start=13) == whole[13:33]).all()
    assert not (gpu_random.host_words(KEY, 2**40 + 4, 20) == whole[:20]).any()


def test_draws_of_a_secure_stream_on_a_gpu_follow_their_rates(pretended):
    rows = SECURE.rows([3, 4, 9])
    words = by_processor(rows.chacha_key(), rows.ids, 4000).numpy().view(np.uint64) >> np.uint64(11)
    found = [w < int(r * 2.0**53) for w, r in zip(words, (0.1, 1.0, 0.5), strict=True)]
    bits = rows._bits53(CPU, 4000)
    assert (bits.numpy() == words.astype(np.int64)).all()
    sizes, rates = [4000, 10, 3000], [0.1, 1.0, 0.5]
    [(index, counts)] = picked([rows.kept(sizes, rates, CPU)], sizes)
    assert counts[1] == 10 and 330 < counts[0] < 470 and 1400 < counts[2] < 1600
    assert index[: counts[0]].tolist() == np.flatnonzero(found[0]).tolist()
    assert index[-counts[2] :].tolist() == (4010 + np.flatnonzero(found[2][:3000])).tolist()


@pytest.mark.parametrize("again", ["few", "wide", "all"])
def test_rounded_normals_made_on_a_gpu_are_exact(pretended, monkeypatch, again):
    """Against mpmath with 60 digits; `wide` and `all`: as if floats, and wide numbers too, had no digits."""
    import mpmath

    calls = []
    monkeypatch.setattr(rounded_normal, "settle", lambda *args: calls.append(args) or settle(*args))
    scales = np.array([3.3e5, 12.5])
    if again != "few":
        monkeypatch.setattr(rounded_normal, "ERROR", 0.5 / scales.max())
    if again == "all":
        monkeypatch.setattr(rounded_normal, "closer", lambda u, v, s: (np.zeros((len(u), 2)), np.zeros(len(u), bool)))
    rng = SECURE.rows([5, 9])
    found = rounded_normal.gpu_block(rng, slice(8, 207), scales, CPU)  # odd: half a pair is thrown away
    assert found.shape == (2, 199)
    for row, (client, scale) in enumerate(zip((5, 9), scales.tolist(), strict=True)):
        words = gpu_random.host_words(rng.chacha_key(), client, 200, 8).tolist()
        with mpmath.workdps(60):
            for i, (a, b) in enumerate(zip(words[:100], words[100:], strict=True)):
                radius = scale * mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(a >> 1) + 0.5) / 2**63))
                angle = 2 * mpmath.pi * (mpmath.mpf(b) + 0.5) / 2**64
                assert int(found[row, i]) == int(mpmath.nint(radius * mpmath.cos(angle)))
                if i < 99:
                    assert int(found[row, 100 + i]) == int(mpmath.nint(radius * mpmath.sin(angle)))
    narrow = np.finfo(np.longdouble).nmant < 63
    assert len(calls) == 200 if again == "all" or (again == "wide" and narrow) else len(calls) < 3


def test_what_wide_numbers_decide_is_what_intervals_find():
    rng, extremes = np.random.default_rng(1), [0, 1, 2, 3, 2**63 - 1, 2**63 - 2, 2**62, 2**41, 2**63 - 1024]
    first = np.concatenate([extremes, rng.integers(0, 2**63, 600, dtype=np.int64)]).astype(np.int64)
    second = rng.integers(-(2**63), 2**63 - 1, len(first), dtype=np.int64)
    scales = 10 ** rng.uniform(0, 10, len(first))
    pairs, sure = rounded_normal.closer(first, second, scales)
    more, context = rounded_normal.Bits(SECURE, 0), rounded_normal._workspace().context
    for at in np.flatnonzero(sure).tolist():
        exact = settle(int(first[at]), int(second[at]), float(scales[at]), more, context)
        assert tuple(pairs[at]) == exact
    assert not sure[0] and (sure[9:].all() or np.finfo(np.longdouble).nmant < 63)


def test_orders_drawn_on_a_gpu_hold_every_record_once(pretended):
    for stream in (SECURE, Stream.research(3)):
        orders = stream.rows([3, 4, 9]).shuffled([700, 1, 300], CPU)
        for row, many in zip(orders, (700, 1, 300), strict=True):
            assert sorted(row[:many].tolist()) == list(range(many))
        assert orders[0, :300].tolist() != orders[2, :300].tolist() and orders[0].tolist() != list(range(700))


def test_the_mechanism_adds_noise_where_the_rows_are_and_a_seed_stays_on_the_processor(pretended, monkeypatch):
    drawn = []
    block = rounded_normal.gpu_block
    monkeypatch.setattr(rounded_normal, "gpu_block", lambda *args: drawn.append(args) or block(*args))
    monkeypatch.setattr(rounded_normal, "GPU_BLOCK", 4096)
    mechanism, rows = RoundedGaussian(1.5), Bounded(torch.zeros(3, 5001), 2.0)
    found = mechanism.add(rows, SECURE.rows([1, 2, 3])) / (1.5 * 2.0)
    assert [(a[1].start, a[1].stop, len(a[0].ids)) for a in drawn] == [(0, 4096, 1), (4096, 5001, 1)] * 3
    for row in found.double().numpy():
        assert kstest(row, norm.cdf).pvalue > 1e-3 and kstest(row, norm(scale=1.1).cdf).pvalue < 1e-3
    assert abs(np.corrcoef(found.numpy())[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(5001)
    drawn.clear()
    mechanism.add(rows, Stream.research(1).rows([1, 2, 3]))
    assert drawn == []


def normals_by_processor(key, ids, dim, dtype):
    words = (by_processor(key, ids, dim + dim % 2).numpy().view(np.uint64) >> np.uint64(11)) + 0.5
    u, v = words[:, 0::2] * 2.0**-53, words[:, 1::2] * 2.0**-53
    pairs = np.stack([np.cos(2 * np.pi * v), np.sin(2 * np.pi * v)], axis=-1) * np.sqrt(-2 * np.log(u))[:, :, None]
    return torch.from_numpy(pairs.reshape(len(u), -1)[:, :dim].copy()).to(dtype)


def test_kernels_that_give_other_numbers_are_not_used(monkeypatch):
    for name, fine in (("chacha_words", by_processor), ("chacha_normals", normals_by_processor)):
        monkeypatch.setattr(gpu_random, name, fine)
    assert gpu_random.known_answers(CPU)
    for name in ("chacha_words", "chacha_normals"):
        with monkeypatch.context() as patch:
            fine = getattr(gpu_random, name)
            patch.setattr(gpu_random, name, lambda *args, fine=fine: fine(*args) + 1)
            assert not gpu_random.known_answers(CPU)


@pytest.mark.parametrize("error", [ImportError("no triton"), RuntimeError("no compiler")])
def test_without_kernels_the_processor_makes_the_numbers(monkeypatch, error):
    def fail(device):
        raise error

    monkeypatch.setattr(gpu_random, "known_answers", fail)
    gpu_random.ready.cache_clear()
    if isinstance(error, ImportError):
        assert not gpu_random.ready(torch.device("cuda"))
    else:
        with pytest.warns(UserWarning, match="no compiler"):
            assert not gpu_random.ready(torch.device("cuda"))
    gpu_random.ready.cache_clear()
    assert not gpu_random.ready(CPU)


@pytest.mark.gpu
@on_a_gpu
def test_on_a_gpu_words_are_those_of_the_processor():
    ids = torch.tensor(IDS, device="cuda")
    for n, start in ((1, 0), (301, 0), (5000, 64)):
        found = gpu_random.chacha_words(KEY, ids, n, start).cpu()
        assert torch.equal(found, by_processor(KEY, IDS, n, start))


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 203, 10_000])
def test_on_a_gpu_normals_are_those_that_torch_computes(dim):
    ids = torch.tensor(IDS, device="cuda")
    rows = RowStream(Stream.research(7), np.array(IDS))
    words = rows._words(CPU, (dim + 3) // 4)
    assert torch.equal(gpu_random.philox_words(rows.stream.key, ids, (dim + 3) // 4).cpu(), words)
    unit = words.cuda().permute(1, 0, 2).reshape(4, -1).double()
    expected = box_muller(unit.add_(0.5).mul_(2.0**-32))[:, :dim]
    found = gpu_random.philox_normals(rows.stream.key, ids, dim, torch.float64)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(gpu_random.philox_normals(rows.stream.key, ids, dim, torch.float32), found.float())
    secure = gpu_random.chacha_normals(KEY, ids, dim, torch.float64).cpu()
    assert torch.allclose(secure, normals_by_processor(KEY, IDS, dim, torch.float64), rtol=0, atol=1e-12)


@pytest.mark.gpu
@on_a_gpu
def test_on_a_gpu_rounded_normals_are_exact():
    scales, rng = np.array([3.3e5, 1e9]), SECURE.rows([5, 9])
    found = rounded_normal.gpu_block(rng, slice(0, 100_000), scales, torch.device("cuda"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_random, "chacha_words", by_processor)
        expected = rounded_normal.gpu_block(rng, slice(0, 100_000), scales, CPU)
    assert torch.equal(found.cpu(), expected)
