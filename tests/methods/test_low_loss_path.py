import pytest
import torch
from torch import nn

from sordino.contract.method import Public
from sordino.core.rng import Stream
from sordino.core.types import Batch, Model
from sordino.core.vector import Layout
from sordino.gradients.engine import CohortGradients
from sordino.methods.udp_fl import low_loss_path as path
from sordino.tasks.losses import loss_for

RNG = Stream.research(3)


def toy(records=40):
    """x -> a b x, whose loss is least where a b = 1: (1/2, 2) and (2, 1/2), with a barrier on the line between."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    x = torch.linspace(-1, 1, records)[:, None]
    loss = loss_for("squared_error", "regression")
    layout = Layout.of(module)
    model = Model(module, layout, loss, CohortGradients.of(module, loss, layout))
    return Public(model, Batch(x, x.clone(), (records,)))


MINIMA = torch.tensor([[0.5, 2.0], [2.0, 0.5]])


@pytest.mark.parametrize("curve", ["polygon", "bezier"])
def test_the_curve_begins_and_ends_at_the_models(curve):
    first, theta, second = (torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    at = lambda t: path.point(curve, first, theta, second, torch.full((3, 1), t))  # noqa: E731
    assert torch.equal(at(0.0), first) and torch.equal(at(1.0), second)
    middle = theta if curve == "polygon" else first / 4 + theta / 2 + second / 4
    assert torch.allclose(at(0.5), middle)
    quarter = (first + theta) / 2 if curve == "polygon" else (9 * first + 6 * theta + second) / 16
    assert torch.allclose(at(0.25), quarter, atol=1e-6)


@pytest.mark.parametrize("curve", path.CURVES)
def test_the_weight_of_theta_is_its_derivative(curve):
    for t in (0.1, 0.4, 0.5, 0.7, 0.95):
        theta = torch.zeros(1, requires_grad=True)
        path.point(curve, torch.ones(1), theta, torch.ones(1), torch.tensor(t)).sum().backward()
        assert float(path.weights(curve, torch.tensor(t))[1]) == pytest.approx(float(theta.grad), abs=1e-6)


@pytest.mark.parametrize("curve", path.CURVES)
def test_the_path_goes_round_the_barrier(curve):
    found = path.optimise(curve, MINIMA, toy(), 80, 0.3, 4, RNG)
    assert found.along.shape == found.straight.shape == (path.POINTS,)
    for losses in (found.along, found.straight):  # both ends are minima
        assert float(losses[[0, -1]].max()) < 1e-9
    assert float(found.straight.max()) > 0.05
    assert float(found.along.max()) < 0.2 * float(found.straight.max())
    middle = MINIMA.mean(dim=0) + found.shift  # the new model
    a, b = middle.tolist()
    assert abs(a * b - 1) < 0.25 < 0.5 < abs(1.25 * 1.25 - 1)


def test_without_steps_the_new_model_is_the_mean():
    models = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    found = path.optimise("polygon", models, toy(), 0, 0.2, 8, RNG)
    assert torch.equal(found.shift, torch.zeros(2))
    ring = (models + models.roll(-1, 0)) / 2
    assert torch.allclose(ring.mean(dim=0), models.mean(dim=0), atol=1e-6)  # pairwise averages change nothing


@pytest.mark.parametrize(
    ("models", "most", "pairs"), [(2, 4, 1), (3, 4, 3), (4, 4, 4), (9, 4, 4), (50, 2, 1), (5, 1, 1)]
)
def test_at_most_so_many_pairs(models, most, pairs):
    public, asked = toy(), []

    class Counted:
        def sums(self, weights, batch, clip, **keys):
            asked.append((len(weights), batch.sizes))
            return torch.zeros_like(weights)

    watched = Public(Model(public.model.module, public.model.layout, public.model.loss, Counted()), public.batch)
    path.optimise("bezier", torch.ones(models, 2), watched, 3, 0.1, most, RNG)
    assert asked == [(pairs, (40,) * pairs)] * 3


def test_one_model_has_no_path():
    assert path.optimise("bezier", torch.ones(1, 2), toy(), 3, 0.1, 4, RNG) is None
    assert path.optimise("bezier", torch.ones(0, 2), toy(), 3, 0.1, 4, RNG) is None


def test_a_step_is_bounded_whatever_the_models_are():
    wild = torch.tensor([[1e18, 1.0], [3.0, -1e18]])
    found = path.optimise("polygon", wild, toy(), 5, 0.1, 4, RNG)
    assert torch.isfinite(found.shift).all() and float(found.shift.norm()) <= 5 * 0.1 + 1e-6


def test_it_repeats_and_follows_its_stream():
    one, two, other = (path.optimise("bezier", MINIMA, toy(200), 5, 0.1, 4, r).shift for r in (RNG, RNG, RNG.at("x")))
    assert torch.equal(one, two) and not torch.equal(one, other)
