"""Model inversion, the GAN of a curious client and its ACGAN form: models alone tell what a class looks like."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sordino.attacks.acgan import AuxiliaryClassifierGan
from sordino.attacks.base import Victim
from sordino.attacks.gan import CuriousGan
from sordino.attacks.model_inversion import ModelInversion
from sordino.core.errors import SpecError
from sordino.core.types import Batch
from support.leaks import known, seeded, watched

SIDE, SECRET = 12, 2
SMALL = {"steps": 30, "batch": 6, "step": 3e-3}
PLACES = ((0, 0), (0, 6), (6, 0))  # corner of the bright square of each class


def network():
    return seeded(lambda: nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(200, 3)))


def squares(count, seed, classes=3):
    """Pictures of noise with a bright square of 6 x 6, whose corner is the class."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    x = 0.3 * torch.randn(count, 1, SIDE, SIDE, generator=draw)
    for label, (top, left) in enumerate(PLACES):
        x[y == label, :, top : top + 6, left : left + 6] += 1.0
    return x, y


def contrast(x, y):
    """How much brighter the square of its class is than the rest of each picture [n]."""
    out = []
    for picture, label in zip(x, y.tolist(), strict=True):
        mask = torch.zeros(SIDE, SIDE, dtype=torch.bool)
        top, left = PLACES[label]
        mask[top : top + 6, left : left + 6] = True
        out.append(picture[0][mask].mean() - picture[0][~mask].mean())
    return torch.stack(out)


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """Ten rounds of four clients, one of which has no record of the secret class; and rounds with much noise."""
    clients = [squares(30, seed) for seed in range(3)] + [squares(30, 3, classes=2)]
    keys = {"rounds": 10, "learning_rate": 0.3, "local_steps": 2}
    loud = {"method": "dp-sgd", "epsilon": 0.3, "clip": 1.0}
    folder = tmp_path_factory.mktemp("runs")
    return tuple(watched(network(), clients, folder / name, **keys | more) for name, more in (("a", {}), ("b", loud)))


def curious():
    x, y = squares(30, 3, classes=2)
    return Batch(x, y, (30,))


def test_model_inversion_draws_every_class(views):
    attack = ModelInversion(iterations=100, shape=(1, SIDE, SIDE), low=-1.0, high=2.0)
    plain, loud = (attack.reconstruct(seen["public"], known(network(), classes=3), Victim(records=3)) for seen in views)
    assert plain.y.tolist() == [0, 1, 2]
    assert contrast(plain.x, plain.y).min() > 0.2
    assert contrast(plain.x, plain.y.roll(1)).max() < 0  # and no other class
    assert contrast(loud.x, loud.y).mean() < 0.5 * contrast(plain.x, plain.y).mean()


@pytest.mark.parametrize("attack", [CuriousGan(**SMALL), AuxiliaryClassifierGan(**SMALL)])
def test_a_curious_client_generates_a_class_that_it_never_saw(views, attack):
    victim = Victim(records=6, labels=(SECRET,))
    plain, loud = (
        attack.reconstruct(seen["client"][-3:], known(network(), classes=3, own=curious()), victim) for seen in views
    )
    assert plain.y.tolist() == [SECRET] * 6
    assert contrast(plain.x, plain.y).mean() > 0.2
    assert contrast(plain.x, plain.y).mean() > contrast(loud.x, loud.y).mean() + 0.1


def test_they_repeat_themselves_and_leave_the_global_randomness_alone(views):
    before = torch.random.get_rng_state()
    attack, victim = AuxiliaryClassifierGan(steps=2, batch=4), Victim(records=2)
    a, b, other = (
        attack.reconstruct(views[0]["client"][:2], known(network(), classes=3, own=curious(), seed=seed), victim).x
        for seed in (0, 0, 1)
    )
    assert torch.equal(a, b)
    assert not torch.allclose(a, other)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("attack", [CuriousGan(), AuxiliaryClassifierGan()])
def test_gans_need_a_client(views, attack):
    with pytest.raises(SpecError, match=r"reads the views of the client, not those of the server.*Use --view client"):
        attack.reconstruct(views[0]["server"], known(network(), own=curious()), Victim())
    with pytest.raises(SpecError, match="needs the records of the attacker's own clients"):
        attack.reconstruct(views[0]["client"], known(network()), Victim())
