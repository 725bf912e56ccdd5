"""Printed forms with noise once an upload: laws that hold of every method, at another value of one option."""

import numpy as np
import pytest
import torch

from sordino.core.rng import Stream
from support.methods import federation_of, play
from support.problems import federation, job

METHODS = ("adap-dp-fl-paper", "dp-dyns-paper", "fed-alpha-cdp-paper", "private-dl-paper")
RNG = Stream.research(11)
SIZES = (12, 5, 30, 8)


def made(method, clients, epsilon=2.0):
    keys = {"local_steps": 4, "batch_rate": 0.5, "optimizer": "adam", "learning_rate": 0.01}
    return job(method=method, noised="upload", clients=clients, epsilon=epsilon, **keys)


def sent(one, cohort=range(4)):
    return play(one, cohort, federation=federation_of(one, rng=RNG), rng=RNG).sent["update"]


@pytest.mark.parametrize("method", METHODS)
def test_a_row_depends_on_its_client_alone(method):
    clients = federation(SIZES)
    others = [(-3 * x, y) for x, y in clients]
    others[2] = clients[2]
    before, after = sent(made(method, clients)), sent(made(method, others))
    assert torch.allclose(before[2], after[2], atol=1e-6, rtol=1e-6)
    assert not any(torch.allclose(before[i], after[i], atol=1e-4) for i in (0, 1, 3))
    alone = torch.cat([sent(made(method, clients), [i]) for i in range(4)])
    assert torch.allclose(before, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_noise_that_claims_nothing_is_none(method):
    """With a huge claimed epsilon only the local steps are left; with a small one they are drowned."""
    clients = federation(SIZES)
    quiet, loud = (sent(made(method, clients, epsilon=e)).norm() for e in (1e7, 0.01))
    assert float(quiet) < 1.0 < 5 * float(quiet) < float(loud)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_cohort_is_a_round_like_any_other(method):
    one = made(method, federation(SIZES))
    done = play(one, [], rng=RNG)
    assert len(done.sent) == 0 and np.isfinite(done.after.params.numpy()).all()
