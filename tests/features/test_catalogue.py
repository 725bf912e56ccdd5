"""Fixed features by name, and several of them side by side."""

import numpy as np
import pytest
import torch

import sordino
from sordino.core.errors import SordinoError, SpecError
from sordino.features.catalogue import FEATURES, features_of
from sordino.runs import build, run
from sordino.spec import spec


def pictures(n=6):
    return torch.randint(0, 256, (n, 28, 28), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def test_every_name_of_the_spec_has_features():
    assert tuple(FEATURES) == spec.FEATURES
    assert features_of(None) is None and features_of("none") is None
    assert features_of("silhouettes") is FEATURES["silhouettes"]


def test_joined_features_lie_side_by_side_and_are_as_long_as_each():
    x = pictures()
    rows = features_of("silhouettes+scattering")(x)
    parts = [FEATURES[name](x).flatten(1) for name in ("silhouettes", "scattering")]
    assert torch.equal(rows, torch.cat(parts, 1) / 2**0.5)
    assert torch.allclose(rows.norm(dim=1), parts[0].norm(dim=1))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("silhouettes+edges", "there is no 'edges'"),
        ("silhouettes+none", "there is no 'none'"),
        ("silhouettes+", "there is no ''"),
        ("scattering+scattering", "each may be named once"),
    ],
)
def test_names_that_make_no_sense_are_one_error(name, words):
    with pytest.raises(SpecError, match=words):
        spec.from_dict({"features": name})


def test_a_run_on_joined_features_predicts_from_pictures(tmp_path):
    x, y = pictures(60), torch.arange(60) % 3
    x[y == 1, :14] = 0
    x[y == 2, :, :14] = 0
    data = tmp_path / "p.npz"
    np.savez(data, x_train=x.numpy(), y_train=y.numpy(), x_test=x[:9].numpy(), y_test=y[:9].numpy())
    keys = {"dataset": str(data), "features": "silhouettes+scattering", "model": "linear", "clients": 2, "rounds": 3}
    keys |= {"method": "none", "public_data": True, "out": str(tmp_path / "runs"), "name": "joined", "seed": 1}
    made = build.from_spec(spec.from_dict(keys))
    assert made.spec.normalise == "none"
    assert build.from_spec(spec.from_dict(keys | {"features": "silhouettes+drawn-prior"})).spec.normalise == "centred"
    assert build.from_spec(spec.from_dict(keys | {"normalise": "centred"})).spec.normalise == "centred"
    done = run.execute(made, own_model=False)
    predicted = sordino.load(done.folder).predict(x[:9].numpy())
    assert np.mean(predicted == y[:9].numpy()) == done.accuracy
    with pytest.raises(SordinoError, match="colour"):
        build.from_spec(spec.from_dict(keys | {"features": "silhouettes+colour-scattering"}))
