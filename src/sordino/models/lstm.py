"""Character-level LSTM: embeddings of size 8 and two layers of 256 units (819,920 parameters, 80 tokens).

McMahan et al. (2017), arXiv:1602.05629, Section 3, on Shakespeare, and LEAF (Caldas et al. 2018, arXiv:1812.01097).
Differences from LEAF: the next character is predicted at every position, not only at the last, and each gate has
PyTorch's two biases."""

from torch import Tensor, nn

from sordino.models._text import check_text

__all__ = ["lstm"]

EMBEDDING, HIDDEN, LAYERS = 8, 256, 2


class RecurrentNetwork(nn.Module):
    """Embedding, LSTM and a linear layer at every position."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [n, time, tokens] for token ids [n, time]."""
        states, _ = self.lstm(self.embedding(ids))
        logits: Tensor = self.head(states)
        return logits


def lstm(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the LSTM, which maps [n, time] to [n, time, outputs] for sequences of any length.

    Args:
        shape: (time,) of one record of integers below `outputs`.
        outputs: number of tokens.
    """
    check_text("lstm", shape)
    return RecurrentNetwork(outputs)
