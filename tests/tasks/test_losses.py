import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients
from sordino.gradients.known import known_loss
from sordino.spec.spec import from_dict
from sordino.tasks.losses import LOSSES, absolute_error, huber, loss_for, squared_error
from support.errors import one_line_error
from support.problems import job

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
    assert loss_for("huber", "regression") is huber
    with pytest.raises(SpecError, match="absolute_error, huber"):
        loss_for("hubert", "regression")


def test_binary_cross_entropy_is_that_of_torch_a_record():
    labels = (TARGETS > 0).long()
    expected = F.binary_cross_entropy_with_logits(PREDICTIONS, labels.float(), reduction="none").mean(1)
    torch.testing.assert_close(LOSSES["binary_cross_entropy"](PREDICTIONS, labels), expected)
    assert loss_for(None, "multi-label") is LOSSES["binary_cross_entropy"]


def test_declared_weights_multiply_the_loss_of_a_record_and_not_its_clipped_share():
    weighted, classes = loss_for(None, "classification", (0.5, 3.0)), torch.tensor([0, 1, 1, 0, 1, 0])
    plain = F.cross_entropy(PREDICTIONS, classes, reduction="none")
    torch.testing.assert_close(weighted(PREDICTIONS, classes), torch.tensor([0.5, 3.0])[classes] * plain)
    assert known_loss(weighted) and not known_loss(type("Own", (type(weighted),), {})((0.5, 3.0)))
    module, layout = nn.Linear(2, 2), Layout.of(nn.Linear(2, 2))
    batch = Batch(PREDICTIONS, classes, (1,) * 6)
    sums = {
        path: CohortGradients.of(module, loss, layout, path).sums(layout.read(module), batch, 0.3)
        for path, loss in (("book-keeping", weighted), ("vmap", weighted))
    }
    torch.testing.assert_close(sums["book-keeping"], sums["vmap"])
    assert float(sums["vmap"].norm(dim=1).max()) <= 0.3 * (1 + 1e-6)  # the clip bounds every record, heavy or not
    bare = CohortGradients.of(module, LOSSES["cross_entropy"], layout).sums(layout.read(module), batch, None)
    heavy = CohortGradients.of(module, weighted, layout).sums(layout.read(module), batch, None)
    torch.testing.assert_close(heavy, torch.tensor([0.5, 3.0])[classes][:, None] * bare)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"class_weights": "balanced"}, "nobody has paid"),
        ({"class_weights": [1.0, -5.0]}, "class_weights"),
        ({"class_weights": [1.0, 5.0]}, "has 2 numbers, but the model has 3 outputs"),
    ],
    ids=str,
)
def test_weights_that_are_not_one_public_number_a_class_are_refused(keys, words):
    with one_line_error(SpecError, words):
        job(**keys)


def test_weights_belong_to_the_cross_entropy():
    for name, task in (("huber", "regression"), (None, "multi-label"), (squared_error, "classification")):
        with one_line_error(SpecError, "class_weights multiply the cross-entropy"):
            loss_for(name, task, (1.0, 2.0))
    assert from_dict({"class_weights": [1, 5.5]}).weights_of_classes() == (1.0, 5.5)
    assert from_dict({"class_weights": "1,5.5"}).to_dict()["class_weights"] == "1,5.5"
