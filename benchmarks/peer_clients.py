"""What one client does in a round, the peers' way: every peer runs this code."""

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from common import cnn
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
CLIP, NOISE, RATE = 1.0, 1.0, 0.05
State = dict[str, Tensor]


def opacus_as_documented(state: State, x: Tensor, y: Tensor, batch: int) -> State:
    """As in Flower's Opacus example: a model, a PrivacyEngine and a Poisson loader for each client and round."""
    from opacus import PrivacyEngine

    model = cnn()
    model.load_state_dict(state)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
    )
    for bx, by in loader:
        optimizer.zero_grad()
        F.cross_entropy(private(bx), by).backward()
        optimizer.step()
    return model.state_dict()


def sgd_as_documented(state: State, x: Tensor, y: Tensor, batch: int) -> State:
    """As in Flower's quickstart: a model and a shuffling loader for each client and round."""
    model = cnn()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for bx, by in DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(bx), by).backward()
        optimizer.step()
    return model.state_dict()


class Sgd:
    """Plain SGD at its leanest: one model for all clients, batches by indexing."""

    def __init__(self, batch: int) -> None:
        self.batch, self.model = batch, cnn()
        self.parameters = list(self.model.parameters())
        self.forward: nn.Module = self.model
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.parameters, lr=RATE)

    def batches(self, n: int) -> Sequence[Tensor]:
        return torch.randperm(n).split(self.batch)

    def __call__(self, params: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
        """What the client has moved by."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, params)
        for index in self.batches(len(y)):
            self.optimizer.zero_grad()
            F.cross_entropy(self.forward(x[index]), y[index]).backward()
            self.optimizer.step()
        with torch.no_grad():
            return torch._foreach_sub(self.parameters, params)


class Opacus(Sgd):
    """Opacus at its leanest: wrapped once, Poisson batches by indexing, no accountant."""

    def __init__(self, batch: int) -> None:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        super().__init__(batch)
        self.forward = GradSampleModule(self.model)
        self.optimizer = DPOptimizer(
            self.optimizer, noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=batch
        )

    def batches(self, n: int) -> Sequence[Tensor]:
        return [torch.nonzero(torch.rand(n) < self.batch / n)[:, 0] for _ in range(n // self.batch)]


class Limit:
    """Forward and backward alone, on batches made beforehand, channels last: the least that PyTorch's kernels take
    for so many records at a time."""

    def __init__(self, batch: int) -> None:
        self.model = cnn().to(memory_format=torch.channels_last)
        self.parameters = list(self.model.parameters())
        x = torch.randn(8, batch, 1, 28, 28)
        self.batches = [(b.contiguous(memory_format=torch.channels_last), torch.zeros(batch).long()) for b in x]

    def run(self, steps: int) -> None:
        for i in range(steps):
            x, y = self.batches[i % len(self.batches)]
            torch.autograd.grad(F.cross_entropy(self.model(x), y), self.parameters)


def clip(update: list[Tensor]) -> list[Tensor]:
    norm = torch.stack(torch._foreach_norm(update)).norm()
    return torch._foreach_mul(update, float((CLIP / norm).clamp(max=1.0)))
