"""A spring to the received model, on noisy gradients."""

import torch

from sordino.algorithms.fedprox import FedProx
from sordino.core.rng import Stream
from support.methods import rows
from support.silent import silent_job

RNG = Stream.research(32)


def moved(method, **keys):
    made = silent_job(400, bias=False, method=method, learning_rate=0.5, **keys)
    return made, rows(made, rng=RNG)


def test_noise_that_moved_a_client_is_pulled_back():
    """On silent data w_2 = -n_1 - n_2 + lr mu n_1 by hand; n_1 is what one step alone moves by."""
    (_, once), (_, free) = (moved("dp-sgd", local_steps=k) for k in (1, 2))
    made, sprung = moved("dp-fedprox", local_steps=2, mu=0.8)
    assert isinstance(made.plan.algorithm, FedProx) and made.plan.algorithm.mu == 0.8
    scale = made.plan.z / job_z(1)  # two steps ask for more noise than one
    assert torch.allclose(sprung, free - 0.5 * 0.8 * scale * once, atol=1e-5)
    assert not torch.allclose(sprung, free, atol=1e-2)


def job_z(steps):
    return moved("dp-sgd", local_steps=steps)[0].plan.z


def test_the_first_step_knows_no_spring():
    assert torch.equal(moved("dp-fedprox", mu=1.0)[1], moved("dp-sgd")[1])


def test_with_no_spring_it_is_dp_sgd():
    assert torch.equal(moved("dp-fedprox", local_steps=3, mu=0.0)[1], moved("dp-sgd", local_steps=3)[1])
