import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest, norm

from sordino.core.errors import SpecError
from sordino.core.rng import RowStream, Stream

CPU = torch.device("cpu")
SECURE = Stream(bytes(range(32)), secure=True)  # a fixed key, so that the test is fixed too
BOTH = pytest.mark.parametrize("stream", [Stream.research(7), SECURE], ids=["research", "secure"])


def normals(stream, n, row=-1):
    return stream.rows([row]).normal(n, like=torch.zeros(1))[0].numpy()


@BOTH
def test_the_same_path_gives_the_same_numbers(stream):
    for _ in range(2):
        again = stream.at("round", 3).at("client", 17)
        assert np.array_equal(normals(again, 5), normals(stream.at("round", 3).at("client", 17), 5))
    first = normals(stream.at("a"), 8)
    normals(stream.at("b"), 100)  # drawing elsewhere, or from the same stream again, changes nothing
    assert np.array_equal(normals(stream.at("a"), 8), first)


@BOTH
def test_different_paths_are_different_and_uncorrelated(stream):
    paths = [("a",), ("b",), ("a", 1), ("a", "1"), (1, "a"), ("a", 1, 1), (11,), (1, 1), (-1,)]
    draws = np.stack([normals(stream.at(*p), 4000) for p in paths])
    assert len({d.tobytes() for d in draws}) == len(paths)
    off = np.corrcoef(draws)[np.triu_indices(len(paths), 1)]
    assert np.abs(off).max() < 5 / np.sqrt(4000)
    assert np.abs(np.corrcoef(draws[0], draws[0] + draws[1])[0, 1]) > 5 / np.sqrt(4000)  # what it would reject
    assert stream.at("a").at("b").key != stream.at("a", "b").key


@BOTH
def test_a_prefix_of_a_longer_draw_is_not_needed_but_rows_are_apart(stream):
    rows = np.stack([normals(stream, 3000, row=i) for i in (-1, 0, 1, 2, 2**40)])
    off = np.corrcoef(rows)[np.triu_indices(5, 1)]
    assert np.abs(off).max() < 5 / np.sqrt(3000)
    shifted = [abs(np.corrcoef(rows[1][k:], rows[2][: 3000 - k])[0, 1]) for k in range(1, 9)]
    assert max(shifted) < 5 / np.sqrt(2990)  # neighbouring rows do not overlap either


@BOTH
def test_normals_are_standard_normal_and_no_other(stream):
    x = normals(stream.at("ks"), 40_000)
    assert x.dtype == np.float32 and np.isfinite(x).all()
    assert kstest(x, norm(scale=1.0).cdf).pvalue > 1e-3
    assert kstest(x, norm(scale=1.05).cdf).pvalue < 1e-3  # five per cent would be seen
    assert kstest(x, norm(loc=0.05).cdf).pvalue < 1e-3
    pairs = np.corrcoef(x[:20_000], x[20_000:])[0, 1]  # cosine and sine of one Box-Muller pair
    assert abs(pairs) < 5 / np.sqrt(20_000)


@BOTH
def test_uniforms_are_uniform_in_the_half_open_interval(stream):
    x = stream.at("uniform").uniform(40_000)
    assert x.min() >= 0 and x.max() < 1
    assert kstest(x, "uniform").pvalue > 1e-3
    assert kstest(x**1.05, "uniform").pvalue < 1e-3
    assert np.array_equal(x * 2**53, np.floor(x * 2**53))


@BOTH
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_any_length_can_be_drawn(stream, n):
    assert len(normals(stream, n)) == len(stream.uniform(n)) == len(stream.permutation(n)) == n


@BOTH
def test_permutations_are_permutations_and_uniform(stream):
    draws = [tuple(stream.at("p", i).permutation(3).tolist()) for i in range(3000)]
    assert {tuple(sorted(d)) for d in draws} == {(0, 1, 2)}
    counts = np.array([draws.count(p) for p in sorted(set(draws))])
    assert len(counts) == 6
    assert chi2.sf(((counts - 500) ** 2 / 500).sum(), 5) > 1e-3


@BOTH
def test_row_i_depends_on_its_id_alone_and_is_the_single_clients_draw(stream):
    ids, like = [5, 0, 2**33 + 1], torch.zeros(1)
    together = stream.rows(ids).at("noise", 2).normal(9, like)
    for row, i in zip(together, ids, strict=True):
        assert torch.equal(row, stream.rows([i]).at("noise", 2).normal(9, like)[0])
        assert torch.equal(row, torch.from_numpy(normals(stream.at("noise", 2), 9, i)))
    assert len({row.numpy().tobytes() for row in together}) == 3
    sizes, rates = (30, 40, 50), (0.3, 0.5, 0.2)
    starts = (0, 30, 70)
    drawn, fixed = (
        [part - start for part, start in zip(index.split(counts), starts, strict=True)]
        for index, counts in (
            stream.rows(ids).poisson(sizes, rates, CPU),
            stream.rows(ids).fixed(sizes, (3, 4, 5), CPU),
        )
    )
    orders = stream.rows(ids).permutations(sizes)
    numbers = stream.rows(ids).integers()
    for k, i in enumerate(ids):
        alone = stream.rows([i])
        assert torch.equal(drawn[k], alone.poisson(sizes[k : k + 1], rates[k : k + 1], CPU)[0])
        assert torch.equal(fixed[k], alone.fixed(sizes[k : k + 1], (k + 3,), CPU)[0]) and len(fixed[k]) == k + 3
        assert (orders[k] == alone.permutations(sizes[k : k + 1])[0]).all()
        assert numbers[k] == alone.integers()[0]
        assert 0 <= numbers[k] < 2**63


def test_secure_streams_differ_and_research_repeats():
    a, b = Stream.operating_system(), Stream.operating_system()
    assert a.secure and a.key != b.key and not np.array_equal(normals(a, 4), normals(b, 4))
    assert np.array_equal(normals(Stream.research(3), 4), normals(Stream.research(3), 4))
    assert not np.array_equal(normals(Stream.research(3), 4), normals(Stream.research(4), 4))
    assert not np.array_equal(normals(Stream(bytes(32), True), 4), normals(Stream(bytes(32), False), 4))


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.0, "1", None])
def test_a_seed_is_a_whole_number_of_63_bits(seed):
    with pytest.raises(SpecError, match="seed"):
        Stream.research(seed)


def test_no_key_is_ever_shown():
    for shown in (repr(SECURE), str(SECURE), repr(SECURE.rows([1])), f"{SECURE.at('x')}"):
        assert "0001" not in shown and "\\x00" not in shown and len(shown) < 100


# --- Philox4x32-10, the generator of the GPU


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Salmon et al. (2011), Section 4.3, word by word."""
    c, k = list(counter), list(key)
    for _ in range(10):
        one, two = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(two >> 32) ^ c[1] ^ k[0], two & 0xFFFFFFFF, (one >> 32) ^ c[3] ^ k[1], one & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def hexes(words) -> str:
    return " ".join(f"{int(w):08x}" for w in words)


def test_philox_has_the_published_answers():
    """Random123 1.14, kat_vectors, philox4x32 with 10 rounds."""
    ones = 0xFFFFFFFF
    assert hexes(philox([0] * 4, [0] * 2)) == "6627e8d5 e169c58d bc57ac4c 9b00dbd8"
    assert hexes(philox([ones] * 4, [ones] * 2)) == "408f276d 41c83b0e a20bc7c6 6d5451fd"
    zero = RowStream(Stream(bytes(32), secure=False), np.array([0]))
    assert hexes(zero._words(CPU, 1)[:, 0, 0]) == "6627e8d5 e169c58d bc57ac4c 9b00dbd8"


def test_the_words_of_the_device_are_philox_at_any_key_client_and_index():
    key = bytes([255] * 12) + bytes(range(20))
    ids = [0, 1, 0xFFFFFFFF, 2**32, 2**40 + 12345, 2**63 - 1]
    words = RowStream(Stream(key, secure=False), np.array(ids))._words(CPU, 70)
    assert words.shape == (4, len(ids), 70)
    for k, i in enumerate(ids):
        for index in (0, 1, 69):
            expected = philox([index, i & 0xFFFFFFFF, i >> 32, 0xFFFFFFFF], [0xFFFFFFFF] * 2)
            assert [int(w) for w in words[:, k, index]] == expected


def test_uniforms_as_tensors_are_the_same_numbers_and_the_devices_are_uniform_too(monkeypatch):
    rows = Stream.research(5).rows([3, 4])
    assert torch.equal(rows.unit(7, CPU), torch.from_numpy(rows.uniform(7)))
    words = rows._words(CPU, 5_000)  # what a GPU draws
    monkeypatch.setattr(RowStream, "_words", lambda self, device, n: words[:, :, :n])

    class Gpu:
        type = "cuda"

    found = rows.unit(19_999, Gpu())
    assert found.shape == (2, 19_999) and float(found.min()) > 0 and float(found.max()) < 1
    for row in found.numpy():
        assert kstest(row, "uniform").pvalue > 1e-3 and kstest(row**1.05, "uniform").pvalue < 1e-3
    assert not torch.equal(found[0], found[1])


def test_a_keystream_can_be_entered_anywhere_and_written_into_memory():
    stream = Stream(bytes(range(32)), True)
    words = stream.words(70_000, 5)
    for start, n in ((0, 7), (2, 8), (40_000, 30_000)):
        assert (stream.words(n, 5, start) == words[start : start + n]).all()
        room = np.full(n + 2, 9, dtype=np.uint64)
        assert (stream.fill(room, n, 5, start) == words[start : start + n]).all()
    assert not (stream.words(8, 6, 2) == words[2:10]).any()
    with pytest.raises(SpecError, match="even word"):
        stream.words(4, 5, 3)
