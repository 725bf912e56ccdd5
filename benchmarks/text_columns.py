"""Hashed text columns on a small problem: in which of three kinds of plays was a speech spoken?

python benchmarks/text_columns.py /path/to/shakespeare_speeches.csv.gz [--train]

Speeches of at least 20 words; the label is the genre of the play (comedy, history, tragedy). Every fifth speech is the
test part. First a table of encodings with logistic regression without privacy, then (--train) the linear model at some
epsilons through `sordino.train`, and an embedding bag trained from scratch on the same hashes.
"""

from __future__ import annotations

import argparse
import tempfile

import numpy as np
import pandas as pd
import torch
from torch import nn

import sordino
from sordino.data.hashed_text import Text

GENRES = {
    "comedy": "all_well as_you com_err dream lll m_for_m m_wives merchant much_ado t_night taming tempest two_gent "
    "win_tale pericles",
    "history": "hen_iv_1 hen_iv_2 hen_v hen_vi_1 hen_vi_2 hen_vi_3 hen_viii john rich_ii rich_iii",
    "tragedy": "a_and_c coriolan cymbelin hamlet j_caesar lear macbeth othello r_and_j timon titus troilus",
}
NUMBER = {play: i for i, plays in enumerate(GENRES.values()) for play in plays.split()}
CLIENTS, BUCKETS = 10, 4096


class Bag(nn.Module):
    """The mean of learnt word vectors, written as a product with the hashed counts, and a linear layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.out = nn.Linear(BUCKETS, width, bias=False), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        return self.out(self.words(x))


def main() -> None:
    """Print the tables."""
    asked = argparse.ArgumentParser()
    asked.add_argument("path")
    asked.add_argument("--train", action="store_true")
    options = asked.parse_args()
    table = pd.read_csv(options.path)
    table = table[table.text.str.split().str.len() >= 20].reset_index(drop=True)
    y, out = table.play.map(NUMBER).to_numpy(), np.arange(len(table)) % 5 == 0
    print(f"{(~out).sum()} speeches, {out.sum()} held out; majority {np.bincount(y[out]).max() / out.sum():.3f}")
    encodings(table.text.tolist(), y, out)
    if options.train:
        train(table.text.tolist(), y, out)


def encodings(texts: list[str], y: np.ndarray, out: np.ndarray) -> None:
    """Print the accuracy of logistic regression without privacy for several encodings."""
    from sklearn.linear_model import LogisticRegression

    for pairs in (False, True):
        for buckets in (512, 1024, 4096):
            x = Text(buckets, pairs).encode("text", texts)
            fitted = LogisticRegression(C=3.0, max_iter=300).fit(x[~out], y[~out])
            print(f"pairs={pairs!s:5} buckets={buckets:5}: {fitted.score(x[out], y[out]):.3f}", flush=True)


def train(texts: list[str], y: np.ndarray, out: np.ndarray) -> None:
    """Print the accuracy of private models through `sordino.train`."""
    x = Text(BUCKETS, pairs=False).encode("text", texts)
    order = np.random.default_rng(0).permutation(np.flatnonzero(~out))
    clients = [(x[part], y[part]) for part in np.array_split(order, CLIENTS)]
    for name, make in (("linear", lambda: nn.Linear(BUCKETS, 3)), ("embedding bag", Bag)):
        for epsilon in (2.0, 8.0):
            for rate in (2.0, 8.0, 64.0):
                with tempfile.TemporaryDirectory() as folder:
                    torch.manual_seed(0)
                    result = sordino.train(
                        make(), clients, test=(x[out], y[out]), epsilon=epsilon, delta=1e-5, rounds=20,
                        learning_rate=rate, seed=0, device="cpu", out=folder, ledger=f"{folder}/ledger.sqlite",
                    )  # fmt: skip
                print(f"{name:14} epsilon {epsilon:g}, rate {rate:g}: {result.accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
