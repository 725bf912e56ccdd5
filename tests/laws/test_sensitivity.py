"""What one protected unit changes in the pre-noise aggregate is at most what is charged for."""

from dataclasses import replace

import pytest
import torch

from sordino.contract import clipped_steps
from sordino.core.message import Message
from sordino.core.rng import Stream
from sordino.core.types import Batch
from sordino.privacy.events import FixedSize, Repeated, Sampled
from sordino.runs import loop
from support.methods import play, price
from support.problems import CLASSES, FEATURES, federation, job

CPU = torch.device("cpu")
RNG = Stream.research(2)
SIZES = (3, 40, 1, 12, 100, 7)


def sums(message):
    """What the server adds its noise to, in float64."""
    doubles = Message({name: value.double() for name, value in message.fields.items()}, message.weight)
    return {name: value[0] for name, value in doubles.total().fields.items()}


@pytest.mark.parametrize("method", ["dp-fedavg"])
@pytest.mark.parametrize("weight_cap", [0.0, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("adaptive", [False, True])
def test_one_client_moves_the_sum_by_at_most_the_clip(method, weight_cap, adaptive):
    """Remove one: C. Replace one, by a client of any size: 2C. The count moves by 1/2 and 1."""
    clip = 0.3
    clients = [(20 * x, y) for x, y in federation(SIZES)]
    other = (-50 * torch.ones(100, FEATURES), torch.full((100,), CLASSES - 1))
    keys = {"method": method, "clip": clip, "weight_cap": weight_cap, "adaptive_clip": adaptive, "learning_rate": 2.0}
    made = job(clients=clients, **keys)
    sent, longest = play(made, rng=RNG).sent, 0.0
    total = sums(sent)
    assert set(total) == ({"update", "within"} if adaptive else {"update"})
    for i in range(6):
        without = sums(sent.pick(torch.tensor([j for j in range(6) if j != i])))
        replaced = sums(play(job(clients=[*clients[:i], other, *clients[i + 1 :]], **keys), rng=RNG).sent)
        removal, swap = ({name: total[name] - others[name] for name in total} for others in (without, replaced))
        assert float(removal["update"].norm()) <= clip * (1 + 1e-6)
        assert float(swap["update"].norm()) <= 2 * clip * (1 + 1e-6)
        longest = max(longest, float(swap["update"].norm()))
        if adaptive:
            assert float(removal["within"].abs()) <= 0.5 and float(swap["within"].abs()) <= 1.0
    if weight_cap <= 1:
        assert longest > 0.5 * clip  # the bound is not slack: the clients do pull


@pytest.mark.parametrize("clip", [0.05, 1.0])
def test_one_record_moves_a_clients_clipped_sum_by_at_most_the_clip(clip):
    made = job(method="dp-sgd", clients=[(30 * x, y) for x, y in federation(SIZES)], clip=clip)
    data = made.federation.data.fetch(range(6), CPU)
    weights = loop.begin(made).params
    whole = made.model.gradients.sums(weights, data, clip)
    start, seen = 0, 0.0
    for k, size in enumerate(data.sizes):
        for i in range(start, start + min(size, 5)):
            keep = [j for j in range(len(data.y)) if j != i]
            sizes = tuple(s - (m == k) for m, s in enumerate(data.sizes))
            less = made.model.gradients.sums(weights, Batch(data.x[keep], data.y[keep], sizes), clip)
            moved = (whole - less).double().norm(dim=1)
            assert float(moved[k]) <= clip * (1 + 1e-4)
            assert float(moved[[m for m in range(6) if m != k]].max()) <= 1e-4 * clip
            seen = max(seen, float(moved[k]))
        start += size
    assert seen > 0.9 * clip


def accounted_rate(event):
    while isinstance(event, Repeated):
        event = event.event
    if isinstance(event, Sampled):
        return event.rate
    return event.size / event.population if isinstance(event, FixedSize) else 1.0


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("batch", [{"batch_rate": 0.1}, {"batch_rate": 0.25}, {"batch_size": 3}, {"batch_rate": 0.02}])
def test_no_client_draws_a_record_more_often_than_is_charged(sampling, batch):
    """dp-sgd charges all clients at one rate; rounding a batch to whole records must not push a client above it."""
    sizes = tuple(range(10, 41))
    made = job(method="dp-sgd", clients=federation(sizes), batch_sampling=sampling)
    local = replace(made.plan.local, **({"batch_size": None, "batch_rate": None} | batch))
    plan = replace(made.plan, local=local)
    charged = accounted_rate(price(made.method, plan)[0].event)
    data = made.federation.data.fetch(range(len(sizes)), CPU)
    if sampling == "fixed":
        drawn = clipped_steps.batch_of(data, plan, "fixed", RNG.rows(range(len(sizes)))).sizes
        rates = [m / n for m, n in zip(drawn, sizes, strict=True)]
    else:
        rates = [plan.local.rate(n) for n in sizes]
    assert max(rates) <= charged * (1 + 1e-12)
    assert charged < 0.5  # amplification is not simply given up


def test_fixed_batches_are_charged_under_replace_even_if_the_smallest_client_is_one_batch():
    """Removing a record from a fixed-size batch lets another one in: 2C, not C, wherever a client has more records."""
    made = job(method="dp-sgd", clients=federation((10, 11, 40)), batch_sampling="fixed", batch_size=10)
    (cost,) = price(made.method, made.plan)
    assert cost.relation == "replace"
