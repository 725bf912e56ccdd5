"""Small causal character-level transformer (115,536 parameters for 80 tokens and 80 positions).

Vaswani et al. (2017), arXiv:1706.03762: the decoder without cross-attention, with normalisation before each sublayer
(Radford et al. 2019, GPT-2) and learnt positions; two layers, width 64, four heads. There is no dropout, since the
noise already regularises. The embedding of characters and the last layer are not tied, so that gradients can be
computed by book-keeping, which is faster."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.core.errors import ModelError
from sordino.models._text import check_text

__all__ = ["transformer"]

WIDTH, HEADS, LAYERS = 64, 4, 2


class TransformerLayer(nn.Module):
    """Transformer layer: x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.wide, self.narrow = (
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x [n, time, width]."""
        heads = self.qkv(self.norm1(x)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)  # [n, heads, time, width]
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.narrow(F.gelu(self.wide(self.norm2(x))))
        return x


class Causal(nn.Module):
    """Causal transformer with learnt positions, for sequences of at most `length` tokens."""

    def __init__(self, tokens: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.tokens, self.places = nn.Embedding(tokens, WIDTH), nn.Embedding(length, WIDTH)
        self.layers = nn.Sequential(*(TransformerLayer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, tokens)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [n, time, tokens] for token ids [n, time]."""
        if ids.shape[1] > self.length:
            raise ModelError(f"the transformer was made for {self.length} positions, not {ids.shape[1]}.")
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device).expand_as(ids))
        logits: Tensor = self.head(self.norm(self.layers(x)))
        return logits


def transformer(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the transformer, which maps [n, time] to [n, time, outputs].

    Shorter sequences are accepted, longer ones are not.

    Args:
        shape: (time,) of one record of integers below `outputs`.
        outputs: number of tokens.
    """
    check_text("transformer", shape)
    return Causal(outputs, shape[0])
