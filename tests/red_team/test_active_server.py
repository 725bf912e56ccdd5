"""A server that chooses its broadcast reads whole batches exactly; noise for every record stops it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sordino.attacks.base import Victim
from sordino.attacks.imprint import Imprint
from sordino.core.errors import SpecError
from sordino.core.message import Message
from sordino.core.types import Batch, State
from sordino.core.view import View
from sordino.models.mlp import mlp
from sordino.red_team import picture_metrics as metrics
from sordino.red_team.active_server import ImprintServer
from support.leaks import SHAPE, digits, known, lenet, modelled, pixels, seeded, watched

READ = Imprint(shape=SHAPE)


def chosen():
    """The 2NN of McMahan et al., as the server sends it; it knows other digits."""
    return ImprintServer(digits(500)[0][100:]).module(seeded(lambda: mlp(SHAPE, 10)))


def attacked(module, tmp_path, **keys):
    """The originals of a client with 8 digits, and what is read of them, in the best order."""
    x, y = digits(16)
    views = watched(module, [(x[:8], y[:8]), (x[8:], y[8:])], tmp_path, **keys)
    got = READ.reconstruct(views["server"], known(module), Victim(client=1, records=8))
    return got.x[metrics.matched(got.x, x[8:])], x[8:]


def test_records_of_a_batch_are_read_exactly(tmp_path):
    made, true = attacked(chosen(), tmp_path, learning_rate=1.0)
    assert metrics.mse(made, true).max() < 1e-4  # an update is a difference of 32-bit weights
    assert metrics.mse(made.roll(1, 0), true).min() > 0.1


def test_noise_for_every_record_stops_it(tmp_path):
    made, true = attacked(chosen(), tmp_path, method="dp-sgd", epsilon=8.0, clip=1.0)
    assert metrics.ssim(pixels(made), pixels(true)).max() < 0.3
    assert metrics.mse(made, true).min() > 0.1


def test_clipping_without_noise_does_not_stop_it():
    """A clip scales the weight and the bias gradient of a record alike, and their ratio stays."""
    x, y = digits(8)
    known_model = known(chosen())
    model = known_model.model
    start = model.layout.read(model.module)
    sums = model.gradients.sums(start, Batch(x, y, (8,)), 0.1, seeds=[0])
    sent = Message({"update": -0.1 * sums / 8}, ids=np.array([0]))
    got = READ.reconstruct([View("server", 1, "train", State(start), (0,), sent)], known_model, Victim(0, records=8))
    assert metrics.mse(got.x[metrics.matched(got.x, x)], x).max() < 1e-6


def test_a_state_is_imprinted_in_any_round(tmp_path):
    module = seeded(lambda: mlp(SHAPE, 10))
    model, server = modelled(module), ImprintServer(digits(50)[0])
    state = State(model.layout.read(module), round=3)
    sent = server.chosen(state, model)
    assert sent.round == 3
    assert torch.equal(sent.params, model.layout.read(server.module(module)))
    assert not torch.equal(sent.params, state.params)
    assert torch.equal(model.layout.read(module), state.params)  # the template stays


def test_it_needs_a_linear_first_layer_and_a_broadcast_of_its_own(tmp_path):
    server = ImprintServer(digits(50)[0])
    for module in (lenet(), nn.Sequential(nn.Flatten(), nn.Linear(784, 10))):
        with pytest.raises(SpecError, match="an imprint needs a model that begins with a linear layer with bias, ReLU"):
            server.module(module)
    with pytest.raises(SpecError, match=r"the model that was sent has none. Let an active server send one"):
        attacked(seeded(lambda: mlp(SHAPE, 10)), tmp_path)
