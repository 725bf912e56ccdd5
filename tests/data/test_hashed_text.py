"""Text columns: fixed hashes, unit length, and nothing that depends on other records."""

import numpy as np
import pandas as pd
import pytest
import torch

from sordino.core.errors import DataError
from sordino.data import dense, schema
from sordino.data.hashed_text import Text
from support.errors import one_line_error

PLACE = (295, 1.0)
TEXTS = ["To be, or not to be", "that is the question", "to BE or not, to be!", "", "be"]


def test_a_row_is_the_damped_signed_count_of_its_words_and_pairs():
    """A second, naive implementation of one bucket per token, with buckets enough that none is shared."""
    rows = Text(2**16).encode("t", TEXTS)
    assert rows.shape == (5, 2**16) and rows.dtype == np.float32
    counts = sorted(np.abs(rows[0][rows[0] != 0]))  # to: 2, be: 2, or: 1, not: 1
    length = np.sqrt(2 * np.log(3) ** 2 + 2 * np.log(2) ** 2)
    np.testing.assert_allclose(counts, sorted(np.log([2, 2, 3, 3]) / length), rtol=1e-6)
    assert np.array_equal(rows[0], rows[2]) and not rows[3].any()  # case and marks do not count
    assert np.count_nonzero(Text(2**16, pairs=True).encode("t", TEXTS)[0]) == 4 + 4  # to be, be or, or not, not to


def test_the_hash_is_fixed():
    """A stored model is useless if the place of a word changes; this one was written down."""
    (place,) = np.flatnonzero(Text().encode("t", ["question"])[0])
    assert (place, Text().encode("t", ["question"])[0, place]) == PLACE


def test_a_record_does_not_depend_on_the_others():
    together, alone = Text(64).encode("t", TEXTS), [Text(64).encode("t", [text])[0] for text in TEXTS]
    assert np.array_equal(together, np.stack(alone))


def test_a_schema_declares_text_beside_other_columns(tmp_path):
    (tmp_path / "s.toml").write_text("[age]\nmin = 0\nmax = 100\n[note]\ntext = true\nbuckets = 16\npairs = true\n")
    declared = schema.read(tmp_path / "s.toml")
    assert declared["note"] == Text(16, pairs=True)
    x = schema.encode(pd.DataFrame({"age": ["50", "100"], "note": ["a b", ""]}), declared)
    assert x.shape == (2, 17) and x.dtype == torch.float32
    torch.testing.assert_close(x[:, 1:].norm(dim=1), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[a]\ntext = false", "text = true"),
        ("[a]\ntext = true\npairs = 1", "pairs as true or false"),
        ("[a]\ntext = true\nbuckets = 1", "buckets must be a whole number from 2"),
        ("[a]\ntext = true\nbuckets = true", "buckets must be a whole number"),
        ("[a]\ntext = true\nmin = 0", "found min, text"),
    ],
)
def test_a_bad_declaration_is_refused(text, match, tmp_path):
    (tmp_path / "s.toml").write_text(text)
    with one_line_error(DataError, match):
        schema.read(tmp_path / "s.toml")


def test_too_many_buckets_for_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(dense, "MOST_BYTES", 1000)
    with one_line_error(DataError, r"column 't': 5 records of 4,096 numbers need .* GiB of memory"):
        Text().encode("t", TEXTS)
