"""Every kind of layer, shared and per-client weights, ragged batches: the same sums as the naive loop."""

import pytest
import torch
from reference import CLOSE, case, loss, middle_norm, naive, relative
from torch import nn

from sordino.core.types import Batch
from sordino.gradients import CohortGradients

SIZES = [(3, 0, 1, 4), (2, 2, 2), (5,)]
N = 8  # records drawn for every case


class First(nn.Module):
    """The outputs of a recurrent layer, without its last state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        out, last = self.layer(x)
        hidden = last[0] if isinstance(last, tuple) else last
        return out.flatten(1) + hidden.transpose(0, 1).flatten(1).sum(1, keepdim=True)


class TimeFirst(First):
    def forward(self, x):
        return self.layer(x.transpose(0, 1))[0].transpose(0, 1)


def image(c=4, *size):
    return torch.randn(N, c, *(size or (6, 5)))


def net(*layers):
    return nn.Sequential(*layers)


MODELS = {
    "linear": lambda: (net(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), torch.randn(N, 5)),
    "linear-alone": lambda: (nn.Linear(5, 3), torch.randn(N, 5)),
    "linear-no-bias": lambda: (net(nn.Linear(5, 7, bias=False), nn.ReLU(inplace=True)), torch.randn(N, 5)),
    "linear-tokens": lambda: (net(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)), torch.randn(N, 6, 5)),
    "linear-two-axes": lambda: (net(nn.Linear(5, 3), nn.GELU(), nn.Linear(3, 9)), torch.randn(N, 2, 30, 5)),
    "conv1d": lambda: (net(nn.Conv1d(4, 6, 3, 2, 1), nn.Tanh(), nn.Conv1d(6, 2, 2)), image(4, 11)),
    "conv2d": lambda: (net(nn.Conv2d(4, 6, 3, 2, 1), nn.Tanh(), nn.Conv2d(6, 2, 2)), image()),
    "conv2d-wide": lambda: (net(nn.Conv2d(4, 40, 3), nn.ReLU(inplace=True), nn.Conv2d(40, 30, 2)), image()),
    "conv2d-bare": lambda: (net(nn.Conv2d(4, 6, (3, 2), (1, 2), (2, 1), bias=False), nn.Tanh()), image()),
    "conv2d-dilated": lambda: (net(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 5, 2, dilation=(2, 3))), image(4, 7, 8)),
    "conv2d-same": lambda: (net(nn.Conv2d(4, 4, 4, padding="same"), nn.Conv2d(4, 3, 2, padding="same")), image()),
    "conv2d-groups": lambda: (net(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 6, 3, groups=2)), image()),
    "conv2d-depthwise": lambda: (net(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 8, 3, groups=4, padding=1)), image()),
    "conv2d-pool": lambda: (net(nn.Conv2d(1, 4, 4, 2, 1), nn.MaxPool2d(2, 1), nn.Conv2d(4, 3, 4, 2)), image(1, 16, 16)),
    "conv3d": lambda: (net(nn.Conv3d(2, 3, 2, padding=1), nn.Tanh(), nn.Conv3d(3, 2, 3, 2)), image(2, 4, 5, 4)),
    "embedding": lambda: (net(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.randint(0, 9, (N, 7))),
    "embedding-one": lambda: (net(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.randint(0, 9, (N,))),
    "embedding-padding": lambda: (net(nn.Embedding(3, 4, padding_idx=1), nn.Linear(4, 2)), torch.randint(0, 3, (N, 7))),
    "embedding-long": lambda: (net(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.randint(0, 9, (N, 300))),
    "layer-norm": lambda: (net(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2)), torch.randn(N, 3, 5)),
    "layer-norm-first": lambda: (net(nn.LayerNorm((3, 5), bias=False), nn.Tanh()), torch.randn(N, 3, 5)),
    "rms-norm": lambda: (net(nn.Linear(5, 6), nn.RMSNorm(6), nn.Linear(6, 2)), torch.randn(N, 3, 5)),
    "group-norm": lambda: (net(nn.Conv2d(4, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.Conv2d(6, 2, 2)), image()),
    "group-norm-flat": lambda: (net(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.Tanh()), torch.randn(N, 5)),
    "instance-norm": lambda: (net(nn.Conv2d(4, 3, 2), nn.InstanceNorm2d(3, affine=True), nn.Tanh()), image()),
    "instance-norm-1d": lambda: (net(nn.Conv1d(4, 3, 2), nn.InstanceNorm1d(3, affine=True), nn.Tanh()), image(4, 9)),
    "instance-norm-bare": lambda: (
        net(nn.Conv2d(4, 3, 2), nn.InstanceNorm2d(3), nn.SiLU(), nn.Conv2d(3, 2, 2)),
        image(),
    ),
    "instance-norm-3d": lambda: (net(nn.Conv3d(2, 3, 2), nn.InstanceNorm3d(3), nn.SiLU()), image(2, 4, 5, 4)),
    "rnn": lambda: (First(nn.RNN(4, 5, 2, batch_first=True)), torch.randn(N, 6, 4)),
    "rnn-relu": lambda: (First(nn.RNN(4, 5, nonlinearity="relu", bias=False, batch_first=True)), torch.randn(N, 6, 4)),
    "lstm": lambda: (First(nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)), torch.randn(N, 6, 4)),
    "lstm-projected": lambda: (First(nn.LSTM(4, 5, 2, batch_first=True, proj_size=3)), torch.randn(N, 6, 4)),
    "lstm-time-first": lambda: (TimeFirst(nn.LSTM(4, 5)), torch.randn(N, 6, 4)),
    "gru": lambda: (First(nn.GRU(4, 5, 2, batch_first=True, bidirectional=True)), torch.randn(N, 6, 4)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # the naive loop's convolution says it is slow
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_the_naive_loop(name, stacked, sizes):
    module, x = MODELS[name]()
    layout, weights, batch = case(module, x, sizes, stacked)
    gradients = CohortGradients.of(module, loss, layout, "book-keeping")
    for clip in (None, middle_norm(module, weights, batch)):
        expected = naive(module, weights, batch, clip)
        assert relative(gradients.sums(weights, batch, clip), expected) <= (1e-5 if clip is None else CLOSE)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("stacked", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", [n for n in MODELS if not n.startswith(("rnn", "lstm", "gru"))])
def test_the_other_path_agrees(name, stacked):
    module, x = MODELS[name]()
    layout, weights, batch = case(module, x, (3, 0, 1, 4), stacked)
    clip = middle_norm(module, weights, batch)
    gradients = CohortGradients.of(module, loss, layout, "vmap")
    assert relative(gradients.sums(weights, batch, clip), naive(module, weights, batch, clip)) <= 1e-5


def test_recurrent_layers_also_take_the_other_path():
    module, x = MODELS["gru"]()
    layout, weights, batch = case(module, x, (2, 1), True)
    got = CohortGradients.of(module, loss, layout, "vmap").sums(weights, batch, 0.5)
    assert relative(got, naive(module, weights, batch, 0.5)) <= 1e-5


@pytest.mark.parametrize("name", ["linear-tokens", "conv2d", "conv2d-wide", "layer-norm", "lstm", "embedding"])
def test_exact_in_double_precision(name):
    """Nothing is approximated: without clipping the two agree to the last digits."""
    module, x = MODELS[name]()
    layout, weights, batch = case(module, x, (3, 0, 4), True)
    x = batch.x.double() if batch.x.is_floating_point() else batch.x
    batch, weights = Batch(x, batch.y.double(), batch.sizes), weights.double()
    got = CohortGradients.of(module.double(), loss, layout).sums(weights, batch, None)
    assert relative(got, naive(module, weights, batch, None)) <= 1e-12


def test_the_comparison_sees_a_forgotten_bias():
    """Clip factors from weight gradients alone differ far beyond the tolerance used above."""
    module, x = MODELS["linear"]()
    layout, weights, batch = case(module, x, (5,), False)
    clip = middle_norm(module, weights, batch)
    each = naive(module, weights, Batch(batch.x, batch.y, (1,) * 5), None)
    forgetful = each.clone()
    for slot in layout.slots:
        if slot.name.endswith("bias"):
            forgetful[:, slot.start : slot.stop] = 0
    wrong = (each * (clip / forgetful.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0, keepdim=True)
    assert relative(wrong, naive(module, weights, batch, clip)) > 1e-3
