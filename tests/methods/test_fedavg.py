"""FedAvg against a hand-written one, and the row optimisers against torch.optim."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sordino.contract.method import Local
from sordino.core import optimizers
from sordino.core.rng import Stream
from sordino.runs import loop
from support.methods import play, rows
from support.problems import federation, held_out, job, mlp

CPU = torch.device("cpu")
RNG = Stream.research(3)


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def round_of(made, state, number=0, cohort=None):
    return play(made, cohort, replace(state, round=number), rng=RNG).after


def test_fedavg_is_the_hand_written_one():
    """McMahan et al. (2017), Algorithm 1, full batches, three local steps, two rounds, unequal clients."""
    clients = federation((12, 30, 5))
    made = job(method="none", clients=clients, local_steps=3, learning_rate=0.2)
    state, server = loop.begin(made), mlp()
    for r in range(2):
        state = round_of(made, state, r)
        average = torch.zeros_like(flat(server))
        for x, y in clients:
            local = mlp()
            local.load_state_dict(server.state_dict())
            sgd = torch.optim.SGD(local.parameters(), lr=0.2)
            for _ in range(3):
                sgd.zero_grad()
                nn.functional.cross_entropy(local(x), y).backward()
                sgd.step()
            average += len(y) / 47 * flat(local)
        made.model.layout.write(server, average)
    assert torch.allclose(state.params, flat(server), atol=1e-5)
    assert not torch.allclose(state.params, flat(mlp()), atol=1e-2)


def test_only_those_who_took_part_are_averaged():
    made = job(method="none", clients=federation((12, 30, 5)))
    state = loop.begin(made)
    one = round_of(made, state, cohort=[1])
    assert torch.allclose(one.params - state.params, expected(made, state, [1]), atol=1e-6)
    two = round_of(made, state, cohort=[0, 2])
    assert torch.allclose(two.params - state.params, expected(made, state, [0, 2]), atol=1e-6)
    assert torch.equal(round_of(made, state, cohort=[]).params, state.params)


def expected(made, state, cohort):
    data = made.federation.data.fetch(cohort, CPU)
    steps = -0.1 * made.model.gradients.sums(state.params, data, None)  # weight times mean gradient: the sum
    return steps.sum(0) / sum(data.sizes)


def torch_optimizer(name, parameters):
    return {
        "sgd": lambda: torch.optim.SGD(parameters, lr=0.05),
        "momentum": lambda: torch.optim.SGD(parameters, lr=0.05, momentum=0.8),
        "adam": lambda: torch.optim.Adam(parameters, lr=0.05, betas=(0.8, 0.999)),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=0.05, alpha=0.8),
    }[name]()


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_a_local_optimiser_is_torchs(name):
    x, y = held_out(30)
    made = job(method="none", clients=[(x, y)], local_steps=8, optimizer=name, learning_rate=0.05, momentum=0.8)
    state = loop.begin(made)
    ours = round_of(made, state).params
    module = mlp()
    theirs = torch_optimizer(name, module.parameters())
    for _ in range(8):
        theirs.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        theirs.step()
    assert torch.allclose(ours, flat(module), atol=2e-4)
    assert float((flat(module) - state.params).abs().max()) > 0.01  # it did go somewhere


def test_every_optimiser_is_another():
    x, y = held_out(30)
    ends = []
    for name in optimizers.OPTIMIZERS:
        made = job(method="none", clients=[(x, y)], local_steps=4, optimizer=name, learning_rate=0.05)
        ends.append(round_of(made, loop.begin(made)).params)
    for i in range(4):
        for j in range(i):
            assert not torch.allclose(ends[i], ends[j], atol=1e-3)


def test_optimiser_state_is_the_clients_own():
    step = optimizers.Optimizer(Local(optimizer="adam", learning_rate=0.1))
    alone = optimizers.Optimizer(Local(optimizer="adam", learning_rate=0.1))
    for g in (torch.tensor([[1.0, -2.0], [30.0, 4.0]]), torch.tensor([[0.5, 0.5], [-1.0, 2.0]])):
        assert torch.allclose(step(g)[1:], alone(g[1:]))


def test_epochs_in_batches_use_every_record_once_a_pass():
    """Shuffled mini-batches: with a model linear in the data, one epoch's batches add up to the full sum."""
    from sordino.contract.local_sgd import batches

    made = job(method="none", clients=federation((12, 7)))
    data = made.federation.data.fetch([0, 1], CPU)
    for local in (
        Local(steps=None, epochs=1.0, batch_rate=None, batch_size=3),
        Local(steps=None, epochs=2.0, batch_rate=None, batch_size=3),
    ):
        counts = [local.count(n) for n in data.sizes]
        seen = list(batches(data, local, counts, RNG.rows([0, 1])))
        first = torch.cat([b.x[: b.sizes[0]] for b in seen])
        times = int(local.epochs)
        assert sorted(map(tuple, first.tolist())) == sorted(map(tuple, data.x[:12].repeat(times, 1).tolist()))
        assert all(b.sizes[0] == 3 for b in seen)
        assert first[:12].tolist() != data.x[:12].tolist()  # in another order


def test_a_client_with_fewer_steps_waits_for_the_others():
    """One epoch in batches of four: 12 records are three steps, 4 are one."""
    clients = federation((12, 4))
    made = job(method="none", clients=clients)
    local = Local(steps=None, epochs=1.0, batch_rate=None, batch_size=4, learning_rate=0.1)
    made = replace(made, plan=replace(made.plan, local=local))
    state = loop.begin(made)
    both = rows(made, [0, 1], state, rng=RNG)
    data = made.federation.data.fetch([1], CPU)
    once = -0.1 * made.model.gradients.sums(state.params, data, None)[0]  # weight 4 times mean: the sum
    assert torch.allclose(both[1], once, atol=1e-5)
