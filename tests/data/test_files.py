import numpy as np
import pytest
import torch

from sordino.data.load import load

pytestmark = pytest.mark.slow  # unpacking takes seconds
HISTOGRAM = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # of MNIST's training labels


@pytest.fixture(scope="module")
def mnist():
    return load("mnist")


def test_the_embedded_mnist_is_mnist(mnist):
    assert torch.bincount(mnist.y_train).tolist() == HISTOGRAM
    assert mnist.x_train.shape == (60_000, 28, 28) and mnist.x_train.dtype == torch.uint8
    assert mnist.x_test.shape == (10_000, 28, 28)


def test_the_embedded_mnist_equals_the_shared_file(mnist, data_file):
    with np.load(data_file("mnist/mnist.npz"), allow_pickle=False) as file:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            assert np.array_equal(file[name], getattr(mnist, name).numpy()), name
        assert np.bincount(file["y_train"]).tolist() == HISTOGRAM
