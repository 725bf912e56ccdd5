"""An attack on stored Views: it wins without noise, guesses with much of it, and has nothing to read behind a sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import sordino
from sordino.attacks.base import Knowledge, Targets
from sordino.attacks.gradient_alignment import GradientAlignment
from sordino.core.errors import SpecError
from sordino.core.types import Batch
from sordino.core.view import View
from sordino.run_folder.views import read_views
from sordino.runs import build
from sordino.spec import spec

CLIENTS, FEATURES, CLASSES = 40, 30, 4


def people(seed):
    """One record for each of the clients."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(CLIENTS, FEATURES, generator=draw), torch.randint(0, CLASSES, (CLIENTS,), generator=draw)


def network():
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def attacked(tmp_path, **keys):
    """Return in how many clients the attack picks the right one of two records, one trained on and one not."""
    x, y = people(1)
    usual = {"rounds": 3, "seed": 0, "record_views": True, "out": str(tmp_path), "device": "cpu"}
    result = sordino.train(network(), [(x[i : i + 1], y[i : i + 1]) for i in range(CLIENTS)], **usual | keys)
    views = read_views(result.folder, "server")
    made = build.build(spec.from_dict({"method": "none", "device": "cpu"}), network(), [(x, y)])
    attack, known, clients = GradientAlignment(), Knowledge(made.model), tuple(range(CLIENTS))
    inside, outside = (
        attack.score(views, known, Targets(Batch(a, b, (1,) * CLIENTS), clients)) for a, b in (people(1), people(2))
    )
    return int((inside > outside).sum())


def test_without_noise_it_knows(tmp_path):
    assert attacked(tmp_path, method="none") >= CLIENTS - 1


def test_at_a_small_epsilon_it_guesses(tmp_path):
    right = attacked(tmp_path, method="dp-sgd", epsilon=0.05, clip=1.0)
    assert abs(right - CLIENTS / 2) <= 11  # a fair coin is farther off once in 5,000 times


def test_behind_a_secure_sum_it_has_nothing_to_read(tmp_path):
    with pytest.raises(SpecError, match="in round 1 the server saw a sum alone, so there is nothing to read"):
        attacked(tmp_path, method="dp-sgd", epsilon=8.0, channel="secure-sum")


def test_it_is_told_what_it_cannot_use(tmp_path):
    x, y = people(1)
    seen: list[View] = []
    keys = {"method": "none", "rounds": 1, "seed": 0, "out": str(tmp_path), "device": "cpu"}
    sordino.train(network(), [(x[:2], y[:2]), (x[2:], y[2:])], observe=seen.append, **keys)
    made = build.build(spec.from_dict({"method": "none", "device": "cpu"}), network(), [(x, y)])
    attack, known, one = GradientAlignment(), Knowledge(made.model), Batch(x[:2], y[:2], (1, 1))
    server = [v for v in seen if v.viewer == "server"]
    assert np.isfinite(attack.score(server, known, Targets(one, (0, 1)))).all()
    for views, targets, words in (
        (seen[1:], Targets(one, (0, 1)), "not those of the public"),
        (server, Targets(one, (0, 7)), "no view holds a row of client 7"),
    ):
        with pytest.raises(SpecError, match=words):
            attack.score(views, known, targets)
    with pytest.raises(SpecError, match="no field counts"):
        GradientAlignment("counts").score(server, known, Targets(one, (0, 1)))
