from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import nn

from sordino.contract import clipped_steps
from sordino.contract.method import Local
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.core.types import Batch
from sordino.methods.dp_sgd import DpSgd
from sordino.privacy.events import FixedSize, GaussianEvent, Repeated, Sampled
from sordino.runs import loop
from support.methods import clients_stream, let_out, play, price, rows
from support.problems import CLASSES, federation, job, plan
from support.silent import silent_job

RNG = Stream.research(4)
WIDE = 4000


def silent(clients=((10,) * 4), **keys):
    """4001 weights whose gradient is zero: zero inputs, zero targets, no bias but a silent one."""
    return silent_job(WIDE, clients, method="dp-sgd", **keys)


def moved(made, **local):
    return rows(replace(made, plan=replace(made.plan, local=replace(made.plan.local, **local))), rng=RNG)


def quiet(made, **local):
    """The job with next to no noise."""
    return replace(made, plan=replace(made.plan, noise_multiplier=1e-9, local=replace(made.plan.local, **local)))


@pytest.mark.parametrize(("clip", "lr", "rate"), [(1.0, 1.0, 1.0), (0.2, 0.1, 1.0), (3.0, 1.0, 0.5)])
def test_the_noise_inside_a_client_is_z_clip_over_the_expected_batch(clip, lr, rate):
    made = silent(clients=(10,) * 4, clip=clip, learning_rate=lr)
    noise = moved(made, batch_rate=rate).flatten().numpy()
    std = lr * made.plan.z * clip / (10 * rate)
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < 1e-3
    assert kstest(noise, norm(scale=0.9 * std).cdf).pvalue < 1e-3


def test_every_local_step_is_noised_afresh():
    made = silent()
    noise = moved(made, steps=4).flatten().numpy()
    std = 2 * 0.1 * made.plan.z / 10  # four independent steps
    assert kstest(noise, norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(noise, norm(scale=2 * std).cdf).pvalue < 1e-3  # four times the same noise


def test_an_empty_batch_is_noised_too():
    """At a rate of 1e-6 no record is drawn; the step must not show it."""
    made = silent(learning_rate=1.0)
    noise = moved(made, batch_rate=1e-6)
    assert not (noise == 0).any()
    std = made.plan.z  # divided by one record, the least expected batch
    assert kstest(noise.flatten().numpy(), norm(scale=std).cdf).pvalue > 1e-3


def test_the_divisor_is_the_expected_batch_not_the_realised_one():
    """One step without noise: the clipped sum of the drawn records over rate * size, whoever was drawn."""
    made = job(method="dp-sgd", clients=federation((40,)), learning_rate=1.0)
    made = quiet(made, batch_rate=0.25)
    data, state = made.federation.data.fetch([0], torch.device("cpu")), loop.begin(made)
    sizes = set()
    for i in range(6):
        rng = RNG.at("try", i)
        batch = clients_stream(rng).rows([0]).at("train").at("batch", 0)
        drawn = clipped_steps.batch_of(data, made.plan, "poisson", batch)
        total = made.model.gradients.sums(state.params, drawn, 1.0)
        assert torch.allclose(rows(made, state=state, rng=rng), -total / 10, atol=1e-6)
        sizes.add(drawn.sizes[0])
    assert len(sizes) > 1 and sizes != {10}


def test_a_step_is_the_clipped_sum_of_a_hand_written_loop():
    made = job(nn.Linear(20, CLASSES), method="dp-sgd", clients=federation((6,)), learning_rate=0.5, clip=0.4)
    data, state = made.federation.data.fetch([0], torch.device("cpu")), loop.begin(made)
    module, total = loop.trained(made, state.params), torch.zeros_like(state.params)
    for x, y in zip(data.x, data.y, strict=True):
        module.zero_grad()
        nn.functional.cross_entropy(module(x[None]), y[None]).backward()
        g = torch.cat([p.grad.flatten() for p in module.parameters()])
        total += g * min(1.0, 0.4 / float(g.norm()))
    assert torch.allclose(rows(quiet(made), state=state, rng=RNG)[0], -0.5 * total / 6, atol=1e-5)


def test_poisson_batches_of_a_client_have_the_rate_and_the_binomial_variance():
    data = Batch(torch.zeros(200, 1), torch.zeros(200), (200,))
    made = plan(local=Local(batch_rate=0.3))

    def drawn(sampling, i):
        return len(clipped_steps.batch_of(data, made, sampling, RNG.at("b", i).rows([7])).y)

    sizes = [drawn("poisson", i) for i in range(1500)]
    assert abs(np.mean(sizes) - 60) < 5 * np.sqrt(42 / 1500)
    assert abs(np.var(sizes) / 42 - 1) < 5 * np.sqrt(2 / 1500)
    assert {drawn("fixed", i) for i in range(20)} == {60}


def test_what_a_step_is_charged():
    def cost(local, sampling="poisson", **keys):
        (found,) = price(DpSgd(batch_sampling=sampling), plan(local=local, **keys))
        return found.relation, found.event

    assert cost(Local(steps=4)) == ("add/remove", Repeated(GaussianEvent(1.0), 4))
    assert cost(Local(steps=4, batch_rate=0.1)) == ("add/remove", Repeated(Sampled(GaussianEvent(1.0), 0.1), 4))
    small = {"sizes": (12, 60)}  # the smallest client has the highest rate
    found = cost(Local(steps=2, batch_rate=None, batch_size=6), **small)
    assert found == ("add/remove", Repeated(Sampled(GaussianEvent(1.0), 0.5), 2))
    fixed = cost(Local(steps=2, batch_rate=None, batch_size=3), "fixed")
    assert fixed == ("replace", Repeated(FixedSize(GaussianEvent(0.5), 3, 12), 2))  # z relative to 2C
    assert cost(Local(steps=None, epochs=2.0, batch_rate=0.25)) == (
        "add/remove",
        Repeated(Sampled(GaussianEvent(1.0), 0.25), 8),
    )


def test_as_many_steps_are_taken_as_are_charged():
    """Local epochs: the number of noisy steps is what the price says."""
    made = silent()
    made = replace(
        made, plan=replace(made.plan, local=replace(made.plan.local, steps=None, epochs=2.0, batch_rate=0.25))
    )
    (cost,) = price(made.method, made.plan)
    uses = let_out(made, rng=RNG)
    assert len(uses) == cost.event.count == 8
    assert all(use.release.name == "gradient" and len(use.ids) == 4 for use in uses)


def test_epochs_with_a_batch_size_need_clients_of_one_size():
    uneven = plan(local=Local(steps=None, epochs=1.0, batch_rate=None, batch_size=4), sizes=(12, 30))
    with pytest.raises(SpecError, match="clients of one size"):
        price(DpSgd(), uneven)


def test_larger_clients_weigh_more_and_the_noise_is_inside_already():
    made = job(nn.Linear(20, CLASSES), federation((10, 20, 30)), method="dp-sgd", learning_rate=0.5)
    made, state = quiet(made), loop.begin(made)
    alone = []
    for i, n in enumerate((10, 20, 30)):  # mean over the records, times the client's share of all records
        data = made.federation.data.fetch([i], torch.device("cpu"))
        alone.append(-0.5 * made.model.gradients.sums(state.params, data, 1.0)[0] / n * (n / 20))
    sent = rows(made, state=state, rng=RNG)
    assert torch.allclose(sent, torch.stack(alone), atol=1e-6)
    done = play(made, state=state, rng=RNG)
    assert torch.equal(done.seen.weight, torch.tensor([0.5, 1.0, 1.5]))
    assert torch.equal(done.seen["update"], done.sent["update"])  # what left the clients is what the server uses
    assert torch.allclose(done.after.params - state.params, sent.sum(0) / 3, atol=1e-6)


@pytest.mark.parametrize("bad", [{"clip": 0}, {"clip": float("nan")}, {"batch_sampling": "shuffled"}])
def test_what_cannot_be_accounted_is_refused(bad):
    with pytest.raises(SpecError):
        DpSgd(**bad)


def test_recorded_noise_is_that_drawn_where_clients_are_tiny():
    """Whatever a client's size, its message has the noise of a sum over the mean size."""
    made = silent(clients=(1, 2) * 20, learning_rate=1.0)
    assert made.method.noise(loop.begin(made), made.plan) == pytest.approx(float(moved(made).std()), rel=0.03)
