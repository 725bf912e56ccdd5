"""Every model plug-in: fit for private training, gradients as the naive way has them, and able to learn."""

import importlib
import re

import pytest
import torch
from cases import CASES
from reference import middle_norm, naive, relative

from sordino.core import plugin
from sordino.core.errors import ModelError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients
from sordino.tasks.losses import cross_entropy, squared_error
from sordino.tasks.validate import validate

SLOW_PATH = {"wide-resnet"}  # its docstring says why


def loss_of(case):
    return squared_error if case.kind == "regression" else cross_entropy


def docstring(name):
    return importlib.import_module(f"sordino.models.{name.replace('-', '_')}").__doc__


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_every_model_is_tried():
    assert sorted(CASES) == plugin.available("models")


@pytest.mark.parametrize("name", CASES)
def test_it_is_fit_for_private_training(name):
    case = CASES[name]
    module, (x, _) = case.build(name), case.records(3)
    validate(module, x)
    assert not list(module.buffers())
    trailing = (*case.small, case.outputs) if case.kind == "next-token" else (case.outputs,)
    assert module(x).shape == (3, *trailing)


@pytest.mark.parametrize("name", CASES)
def test_the_clipped_sum_is_the_naive_one(name):
    case = CASES[name]
    first = 3 if case.learns else 1  # records of the first client
    module, (x, y) = case.build(name), case.records(first + 1, seed=1)
    layout, loss = Layout.of(module), loss_of(case)
    weights, batch = layout.read(module), Batch(x, y, (first, 0, 1))
    gradients = CohortGradients.of(module, loss, layout)
    clip = middle_norm(module, weights, batch, loss)  # cuts some records and leaves others
    got, expected = gradients.sums(weights, batch, clip), naive(module, weights, batch, clip, loss)
    assert relative(got, expected) < 5e-4
    assert relative(gradients.sums(weights, batch, clip / 2), expected) > 0.1  # the clip is seen
    if name in SLOW_PATH:
        assert gradients.path == "vmap" and "by vmap" in docstring(name)
    else:
        assert gradients.path == "book-keeping", gradients.reason


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [n for n in CASES if n not in SLOW_PATH])
@pytest.mark.parametrize("full", [False, True], ids=["small", "full"])
def test_on_a_gpu_a_first_look_does_not_take_rounding_for_records_that_meet(name, full):
    case = CASES[name]
    module, (x, y) = case.build(name, full).cuda(), case.records(4, seed=1)
    if full and case.kind == "next-token":
        x, y = x.repeat(1, 20)[:, : case.full[0]], y.repeat(1, 20)[:, : case.full[0]]
    elif full:
        x = torch.randn(4, *case.full, generator=torch.Generator().manual_seed(1))
    layout = Layout.of(module)
    gradients = CohortGradients.of(module, loss_of(case), layout)
    sums = gradients.sums(layout.read(module), Batch(x.cuda(), y.cuda(), (3, 0, 1)), 0.01)
    assert gradients.path == "book-keeping", gradients.reason
    assert (sums.norm(dim=1).cpu() <= 0.01 * torch.tensor([3.0, 0.0, 1.0])).all()


@pytest.mark.parametrize("name", [n for n in CASES if n != "linear"])  # linear's docstring gives no number
def test_the_docstring_counts_the_parameters(name):
    stated = re.search(r"\(([\d,]+)\s+parameters", docstring(name))
    assert stated, f"{name} states no number of parameters"
    assert int(stated[1].replace(",", "")) == parameters(CASES[name].build(name, full=True))


def test_published_numbers_of_parameters():
    assert parameters(CASES["mlp"].build("mlp", full=True)) == 199_210  # McMahan et al. (2017), Section 3
    assert parameters(CASES["cnn-femnist"].build("cnn-femnist", full=True)) == 1_663_370  # the same
    assert parameters(plugin.load("models", "cnn-wind")((4,), 1)) == 1_249  # the flat case of its docstring


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.learns])
def test_clipped_gradients_teach_it_a_tiny_problem(name):
    case = CASES[name]
    module, (x, y) = case.build(name), case.records(24)
    layout, loss = Layout.of(module), loss_of(case)
    gradients, batch = CohortGradients.of(module, loss, layout), Batch(x, y, (len(x),))
    weights = layout.read(module).requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=0.01)
    for _ in range(25):
        weights.grad = gradients.sums(weights, batch, 1.0)[0] / len(x)
        optimizer.step()
    with torch.no_grad():
        before = loss(module(x), y).mean()
        layout.write(module, weights)
        after = loss(module(x), y).mean()
    assert after < 0.5 * before


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_text_models_do_not_look_ahead(name):
    case = CASES[name]
    module, (ids, _) = case.build(name), case.records(2)
    other = ids.clone()
    other[:, 4] = (ids[:, 4] + 1) % case.outputs
    a, b = module(ids), module(other)
    torch.testing.assert_close(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4:], b[:, 4:])
    assert module(ids[:, :3]).shape == (2, 3, case.outputs)


def test_standardised_weights_forget_scale_and_mean():
    from sordino.models.wide_resnet import StandardConv2d

    layer, x = StandardConv2d(3, 4, 3, bias=False), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(50).add_(3)
    torch.testing.assert_close(layer(x), before, rtol=2e-2, atol=2e-3)
    weight = layer.weight.detach() - layer.weight.detach().mean((1, 2, 3), keepdim=True)
    naively = torch.nn.functional.conv2d(x, weight / weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
    torch.testing.assert_close(layer(x).detach(), naively, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("linear", "mlp")])
def test_shapes_they_cannot_take_are_refused_in_one_line(name):
    for shape in ((3, 4, 5, 6), (2, 2, 2)):
        with pytest.raises(ModelError, match=f"{name} needs|the cnn needs") as error:
            plugin.load("models", name)(shape, 3)
        assert "\n" not in str(error.value) and str(shape) in str(error.value)


def test_large_pictures_are_too_much_for_the_residual_networks():
    for name in ("resnet18", "wide-resnet"):
        with pytest.raises(ModelError, match="8 to 64 pixels"):
            plugin.load("models", name)((3, 128, 128), 10)
