"""Characters -> 8 numbers each -> two LSTM layers of 256 units -> the next character (819,920 parameters, 80 tokens).

McMahan et al. (2017), arXiv:1602.05629, Section 3, on Shakespeare, and LEAF (Caldas et al. 2018, arXiv:1812.01097).
Differs from LEAF: a prediction at every position, not at the last alone; PyTorch's two biases a gate."""

from torch import Tensor, nn

from sordino.models._text import check_text

__all__ = ["lstm"]

EMBEDDING, HIDDEN, LAYERS = 8, 256, 2


class RecurrentNetwork(nn.Module):
    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, batch_first=True)
        self.head = nn.Linear(HIDDEN, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(ids))
        logits: Tensor = self.head(states)
        return logits


def lstm(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """shape: (time,) of one record of whole numbers below `outputs`, the number of tokens.

    [n, time] -> [n, time, outputs]; any length is taken."""
    check_text("lstm", shape)
    return RecurrentNetwork(outputs)
