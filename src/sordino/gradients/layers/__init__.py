"""Layers with a book-keeping rule, matched by exact type: a subclass may compute something else."""

from __future__ import annotations

from torch import nn

from sordino.gradients.layers.base import TapedLayer
from sordino.gradients.layers.conv import Conv
from sordino.gradients.layers.dropout import ChannelDropout, Dropout
from sordino.gradients.layers.embedding import Embedding
from sordino.gradients.layers.linear import Linear
from sordino.gradients.layers.norm import GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from sordino.gradients.layers.recurrent import TapedRecurrent

LAYERS: dict[type[nn.Module], type[TapedLayer]] = {
    nn.Linear: Linear,
    nn.Conv1d: Conv,
    nn.Conv2d: Conv,
    nn.Conv3d: Conv,
    nn.Embedding: Embedding,
    nn.LayerNorm: LayerNorm,
    nn.RMSNorm: RMSNorm,
    nn.GroupNorm: GroupNorm,
    nn.InstanceNorm1d: InstanceNorm,
    nn.InstanceNorm2d: InstanceNorm,
    nn.InstanceNorm3d: InstanceNorm,
    nn.RNN: TapedRecurrent,
    nn.LSTM: TapedRecurrent,
    nn.GRU: TapedRecurrent,
}
RANDOM: dict[type[nn.Module], type[TapedLayer]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: ChannelDropout,
    nn.Dropout2d: ChannelDropout,
    nn.Dropout3d: ChannelDropout,
}

FREE: dict[type[nn.Module], type[TapedLayer]] = {  # replaced even if nothing is trained; see `norm.InstanceNorm`
    nn.InstanceNorm1d: InstanceNorm,
    nn.InstanceNorm2d: InstanceNorm,
    nn.InstanceNorm3d: InstanceNorm,
}

__all__ = ["FREE", "LAYERS", "RANDOM", "TapedLayer"]
