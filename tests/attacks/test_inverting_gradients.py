"""Inverting gradients: a digit is recognised without noise and gone with it; batches, local epochs and sums."""

from __future__ import annotations

import pytest
import torch

from sordino.attacks import _gradient_matching as matching
from sordino.attacks.base import Victim
from sordino.attacks.inverting_gradients import InvertingGradients
from sordino.core.errors import SpecError
from sordino.core.local_training import Local
from sordino.core.types import Batch
from sordino.red_team import picture_metrics as metrics
from support.leaks import BOX, digits, known, lenet, pixels, watched

QUICK = InvertingGradients(iterations=120, total_variation=1e-3, **BOX)


def similarity(got, true):
    """SSIM of every original with its reconstruction, in the best order."""
    return metrics.ssim(pixels(got.x[metrics.matched(got.x, true)]), pixels(true))


def test_a_digit_is_seen_without_noise_and_not_at_epsilon_8(tmp_path):
    x, y = digits(4)
    module = lenet()
    for keys, low, high in (({}, 0.8, 1.0), ({"method": "dp-sgd", "epsilon": 8.0, "clip": 1.0}, -1.0, 0.3)):
        views = watched(module, [(x[k : k + 1], y[k : k + 1]) for k in range(4)], tmp_path / f"{low}", **keys)
        got = QUICK.reconstruct(views["server"], known(module), Victim(client=3))
        assert low < similarity(got, x[3:]).item() <= high
        if not keys:
            assert got.y.tolist() == y[3:].tolist()
            assert similarity(got, x[2:3]).item() < 0.5  # it is this client's digit and no other


def test_a_batch_is_read_with_its_labels(tmp_path):
    x, y = digits(60)
    views = watched(lenet(), [(x[:4], y[:4]), (x[4:8], y[4:8])], tmp_path)
    other = Batch(x[20:], y[20:], (40,))
    got = QUICK.reconstruct(views["server"], known(lenet(), auxiliary=other), Victim(client=0, records=4))
    assert got.y.tolist() == y[:4].sort().values.tolist()
    assert similarity(got, x[:4]).mean().item() > 0.75
    made = got.x[metrics.matched(got.x, x[:4])]
    assert metrics.identification_rate(made, x, torch.arange(4)) == 1.0


def test_several_local_steps_are_repeated(tmp_path):
    x, y = digits(2)
    views = watched(lenet(), [(x, y)] * 2, tmp_path, local_steps=3, learning_rate=0.5)["server"]
    victim, apart = Victim(client=0, records=2, labels=tuple(y.tolist())), []
    for steps in (3, 1):
        told = known(lenet(), local=Local(steps=steps, learning_rate=0.5))
        leak = matching.leak("test", views, told, victim, "update")
        repeated = matching.simulated(told.model, leak, x, matching.hard(told.model, y))
        apart.append(float(matching.squared(repeated, leak.gradient).detach()))
    assert apart[0] < 1e-8
    assert apart[1] > 0.03  # the update is not one gradient
    told = known(lenet(), local=Local(steps=3, learning_rate=0.5))
    assert similarity(QUICK.reconstruct(views, told, victim), x).min().item() > 0.7


def test_behind_a_secure_sum_it_reads_everybody_at_once(tmp_path):
    x, y = digits(3)
    views = watched(lenet(), [(x[k : k + 1], y[k : k + 1]) for k in range(3)], tmp_path, channel="secure-sum")
    got = QUICK.reconstruct(views["server"], known(lenet()), Victim(records=3, labels=tuple(y.tolist())))
    assert similarity(got, x).mean().item() > 0.75


def test_it_says_what_it_cannot_read(tmp_path):
    x, y = digits(2)
    views = watched(lenet(), [(x[:1], y[:1]), (x[1:], y[1:])], tmp_path)
    for seen, more, victim, words in (
        (views["public"], {}, Victim(0), "not those of the public.*Use --view server"),
        (views["server"], {}, Victim(7), "client 7 sent no message in round 1; 0, 1 did"),
        (views["server"], {}, Victim(0, round=2), "no view of round 2 holds a message with the field update"),
        (views["server"], {"local": None}, Victim(0), "needs the settings of the clients' training"),
        (views["server"], {"local": Local(optimizer="adam")}, Victim(0), "repeats local steps of plain SGD"),
    ):
        with pytest.raises(SpecError, match=words):
            QUICK.reconstruct(seen, known(lenet(), **more), victim)
    with pytest.raises(SpecError, match="must know the shape of a record"):
        InvertingGradients(iterations=1).reconstruct(views["server"], known(lenet()), Victim(0))
