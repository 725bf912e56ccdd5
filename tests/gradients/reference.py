"""The naive way, written apart from the package: one sample at a time, plain autograd, float64."""

from __future__ import annotations

import copy

import torch
from torch import nn

from sordino.core.types import Batch
from sordino.core.vector import Layout

CLOSE = 5e-5  # relative: what guards against rounding may take off clipped gradients (terms.ghost), and rounding itself


def loss(predictions, targets):
    """Squared error against a number a sample; works for predictions of any shape."""
    return (predictions.flatten(1).cos() * (1 + targets.unsqueeze(1))).sum(1)


def naive(module, weights, batch, clip, sample_loss=loss):
    """[clients, dim] in float64: set the weights, backward one sample, scale, add."""
    model = copy.deepcopy(module).double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    stop = torch.tensor(batch.sizes).cumsum(0).tolist()
    rows = []
    for k, (size, end) in enumerate(zip(batch.sizes, stop, strict=True)):
        own = weights[k] if weights.dim() == 2 else weights
        nn.utils.vector_to_parameters(own.double(), parameters)
        total = torch.zeros(own.shape, dtype=torch.float64)
        for i in range(end - size, end):
            x = batch.x[i : i + 1]
            model.zero_grad(set_to_none=True)
            value = sample_loss(model(x.double() if x.is_floating_point() else x), batch.y[i : i + 1])
            value.sum().backward()
            flat = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            gradient = torch.cat([g.reshape(-1) for g in flat])
            norm = gradient.norm().item()
            total += gradient * (min(1.0, clip / norm) if clip is not None and norm > 0 else 1.0)
        rows.append(total)
    return torch.stack(rows)


def small():
    """A convolution and a linear layer, for pictures of two channels and 5 x 5 pixels."""
    return nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 25, 4))


def singles(weights, batch):
    """Every sample a client of its own, with its client's weights."""
    owner = torch.arange(len(batch.sizes)).repeat_interleave(torch.tensor(batch.sizes))
    own = weights[owner] if weights.dim() == 2 else weights
    return own, Batch(batch.x, batch.y, (1,) * batch.x.shape[0])


def naive_groups(module, weights, batch, clip, groups, sample_loss=loss):
    """[clients, dim] and every group's own row [groups, dim], before the clip: one sample, one group at a time."""
    each = naive(module, *singles(weights, batch), None, sample_loss)
    stop = torch.tensor(batch.sizes).cumsum(0)
    rows, total, at = [], torch.zeros(len(batch.sizes), each.shape[1], dtype=torch.float64), 0
    for length in groups:
        mean = each[at : at + length].sum(0) / max(1, length)
        rows.append(mean)
        if length:
            k = int((stop <= at).sum())
            total[k] += mean * min(1.0, clip / mean.norm().item()) if clip is not None else mean
        at += length
    return total, torch.stack(rows)


def naive_scaled(module, weights, batch, clip, scale, groups=None, sample_loss=loss):
    """[clients, dim], and the scaled norms [groups]: g min(1, C / |g / s|), one group at a time."""
    groups = (1,) * sum(batch.sizes) if groups is None else groups
    rows = naive_groups(module, weights, batch, None, groups, sample_loss)[1]
    total, norms = torch.zeros(len(batch.sizes), rows.shape[1], dtype=torch.float64), []
    for row, k in zip(rows, owners(batch, groups), strict=True):
        own = scale[k] if scale.dim() == 2 else scale
        norms.append((row / own.double()).norm().item())
        total[k] += row * min(1.0, clip / max(norms[-1], 1e-300))
    return total, torch.tensor(norms)


def naive_layers(module, weights, batch, bounds, groups=None, sample_loss=loss):
    """[clients, dim], and the norms of layers [groups, layers]: each layer's part clipped to its own bound."""
    groups = (1,) * sum(batch.sizes) if groups is None else groups
    rows = naive_groups(module, weights, batch, None, groups, sample_loss)[1]
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    sizes = [p.numel() for p in module.parameters() if p.requires_grad]
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    total, norms = torch.zeros(len(batch.sizes), rows.shape[1], dtype=torch.float64), []
    for row, k in zip(rows, owners(batch, groups), strict=True):
        parts, own = row.split(sizes), []
        for layer, bound in zip(layers, bounds, strict=True):
            pairs = zip(names, parts, strict=True)
            mine = torch.cat([part if name.rpartition(".")[0] == layer else part * 0 for name, part in pairs])
            own.append(mine.norm().item())
            total[k] += mine * min(1.0, bound / max(own[-1], 1e-300))
        norms.append(own)
    return total, torch.tensor(norms)


def owners(batch, groups):
    """The client of every group; of an empty one, that of the record after it."""
    stop = torch.tensor(batch.sizes).cumsum(0)
    starts = torch.tensor(groups).cumsum(0) - torch.tensor(groups)
    return [min(int((stop <= at).sum()), len(batch.sizes) - 1) for at in starts.tolist()]


def case(module, x, sizes, stacked, seed=0):
    """Layout, weights and batch: the first sum(sizes) records of x with random targets."""
    layout = Layout.of(module)
    generator = torch.Generator().manual_seed(seed)
    weights = layout.read(module).float()
    if stacked:
        weights = weights + 0.1 * torch.randn(len(sizes), layout.dim, generator=generator)
    n = sum(sizes)
    return layout, weights, Batch(x[:n], torch.rand(n, generator=generator), tuple(sizes))


def relative(got, expected):
    return ((got.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def middle_norm(module, weights, batch, sample_loss=loss):
    """A clip that cuts about half of the samples: the median of their norms."""
    return naive(module, *singles(weights, batch), None, sample_loss).norm(dim=1).median().item()
