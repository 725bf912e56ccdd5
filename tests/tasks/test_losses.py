import pytest
import torch
import torch.nn.functional as F

from sordino.core.errors import SpecError
from sordino.tasks.losses import LOSSES, absolute_error, huber, loss_for, squared_error

G = torch.Generator().manual_seed(0)
PREDICTIONS, TARGETS = 3 * torch.randn(6, 2, generator=G), torch.randn(6, 2, generator=G)
TORCH = {"squared_error": F.mse_loss, "absolute_error": F.l1_loss, "huber": F.huber_loss}


@pytest.mark.parametrize("name", TORCH)
def test_regression_losses_are_those_of_torch_a_record(name):
    expected = TORCH[name](PREDICTIONS, TARGETS, reduction="none").mean(1)
    torch.testing.assert_close(LOSSES[name](PREDICTIONS, TARGETS), expected)
    one = LOSSES[name](PREDICTIONS[:, :1], TARGETS[:, 0])  # [n, 1] beside [n] must not become [n, n]
    torch.testing.assert_close(one, TORCH[name](PREDICTIONS[:, 0], TARGETS[:, 0], reduction="none"))


def test_far_errors_pull_no_harder_than_near_ones():
    x = torch.tensor([[0.5], [1.0], [100.0]], requires_grad=True)
    for loss, slopes in ((huber, [0.5, 1, 1]), (absolute_error, [1, 1, 1]), (squared_error, [1, 2, 200])):
        (grad,) = torch.autograd.grad(loss(x, torch.zeros(3)).sum(), x)
        assert grad.flatten().tolist() == slopes


def test_losses_by_name():
    assert loss_for("huber", TARGETS) is huber
    with pytest.raises(SpecError, match="absolute_error, huber"):
        loss_for("hubert", TARGETS)
