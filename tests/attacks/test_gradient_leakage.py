"""DLG, iDLG and GRNN: gradients of single records give the record and its label away."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sordino.attacks import _gradient_matching as matching
from sordino.attacks.base import Victim
from sordino.attacks.dlg import DeepLeakage
from sordino.attacks.grnn import GenerativeRegression
from sordino.attacks.idlg import ImprovedDeepLeakage
from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.red_team import picture_metrics as metrics
from support.leaks import BOX, SHAPE, digits, known, lenet, modelled, pixels, seeded, watched

SIGMOID = lenet(nn.Sigmoid, spread=0.5)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Two clients of one digit each; the views of a server and of a listener on the second one's link."""
    x, y = digits(4)
    views = watched(SIGMOID, [(x[2:3], y[2:3]), (x[3:], y[3:])], tmp_path_factory.mktemp("single"))
    server = views["server"][0]
    wire = replace(server, viewer="wire:1", cohort=(1,), seen=server.seen.pick(torch.tensor([False, True])))
    return x[3:], y[3:], server, wire


@pytest.mark.parametrize(
    "attack",
    [
        DeepLeakage(iterations=40, restarts=1, shape=SHAPE),
        ImprovedDeepLeakage(iterations=40, restarts=1, shape=SHAPE),
        GenerativeRegression(iterations=200, **BOX),
    ],
    ids=lambda attack: attack.name,
)
def test_a_digit_and_its_label_are_read(single, attack):
    x, y, server, wire = single
    view = wire if attack.name == "idlg" else server
    got = attack.reconstruct([view], known(SIGMOID), Victim(client=1))
    assert got.y.tolist() == y.tolist()
    assert metrics.ssim(pixels(got.x), pixels(x)).item() > (0.99 if "dlg" in attack.name else 0.6)


def test_dlg_reads_two_flat_records_with_their_labels():
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 6, generator=draw), torch.tensor([1, 3])
    net = seeded(lambda: nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 10)))
    model = modelled(net)
    start = model.layout.read(net)
    leak = matching.Leak(start, model.gradients.sums(start, Batch(x, y, (2,)), None, seeds=[0])[0] / 2)
    made, logits = torch.randn(2, 6, generator=draw), torch.randn(2, 10, generator=draw)
    distance = matching.lbfgs([made, logits], leak, model, matching.soft(logits), 60)
    assert distance < 1e-6
    made, logits = made.detach(), logits.detach()
    at = metrics.matched(made, x)
    assert logits[at].argmax(dim=1).tolist() == [1, 3]
    assert metrics.mse(made[at], x).max().item() < 1e-3


@pytest.mark.parametrize("bias", [True, False])
def test_idlg_reads_every_label_of_single_records(tmp_path, bias):
    x, y = digits(300)
    net = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Sigmoid(), nn.Linear(16, 10, bias=bias)))
    views = watched(net, [(x[k : k + 1], y[k : k + 1]) for k in range(300)], tmp_path)
    view, attack = views["server"][0], ImprovedDeepLeakage()
    labels = attack.labels(view, known(net))
    assert labels.tolist() == y[torch.from_numpy(view.seen.ids)].tolist()
    loud = watched(
        net, [(x[k : k + 1], y[k : k + 1]) for k in range(300)], tmp_path / "dp", method="dp-sgd", epsilon=1.0
    )
    wrong = attack.labels(loud["server"][0], known(net)) != y[torch.from_numpy(loud["server"][0].seen.ids)]
    assert wrong.float().mean() > 0.5  # not so with noise


def test_labels_of_batches_follow_the_counts():
    x, y = digits(50)
    model = modelled(lenet())
    start = model.layout.read(model.module)
    slope = model.gradients.sums(start, Batch(x[:30], y[:30], (30,)), None, seeds=[0])[0] / 30
    got = matching.batch_labels(model, matching.Leak(start, slope), 30, x[30:])
    assert got.tolist() == y[:30].sort().values.tolist()


@pytest.mark.parametrize("attack", [DeepLeakage(shape=SHAPE), ImprovedDeepLeakage(shape=SHAPE), GenerativeRegression()])
def test_they_refuse_sums_and_models(tmp_path, attack):
    x, y = digits(2)
    views = watched(SIGMOID, [(x[:1], y[:1]), (x[1:], y[1:])], tmp_path, channel="secure-sum")
    with pytest.raises(SpecError, match=r"the server saw a sum alone.*channel = direct would"):
        attack.reconstruct(views["server"], known(SIGMOID), Victim(0))
    with pytest.raises(SpecError, match="needs the messages of single clients"):
        attack.reconstruct(views["public"], known(SIGMOID), Victim(0))


def test_idlg_is_for_single_records(single):
    *_, server, _ = single
    with pytest.raises(SpecError, match=r"this client has 2. Use inverting-gradients"):
        ImprovedDeepLeakage(shape=SHAPE).reconstruct([server], known(SIGMOID), Victim(1, records=2))
