"""A small network on maps of fixed features: accepted for private training, and deaf at the start."""

import pytest
import torch

from sordino.core.errors import ModelError
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients
from sordino.models.scattering_cnn import scattering_cnn
from sordino.tasks.losses import cross_entropy
from sordino.tasks.validate import validate


def test_it_may_be_trained_privately_with_the_book_kept():
    module = scattering_cnn((267, 8, 8), 10)
    validate(module, torch.randn(3, 267, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert CohortGradients.of(module, cross_entropy, Layout.of(module)).path == "book-keeping"
    assert sum(p.numel() for p in module.parameters()) == 193_610


def test_it_starts_without_an_opinion_and_forgets_the_scale_of_its_input():
    module = scattering_cnn((5, 8, 8), 3)
    x = torch.randn(4, 5, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module(x), torch.zeros(4, 3))
    torch.nn.init.ones_(module[-1].weight)
    module[0].bias.data.zero_()
    torch.testing.assert_close(module(x), module(7 * x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(64,), (5, 3, 8)])
def test_what_is_no_map_is_refused(shape):
    with pytest.raises(ModelError, match="scattering-cnn needs pictures"):
        scattering_cnn(shape, 3)
