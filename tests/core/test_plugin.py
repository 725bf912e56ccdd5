import pytest

from sordino.core import plugin
from sordino.core.errors import SpecError


@pytest.mark.parametrize("kind", ["methods", "models"])
def test_every_plug_in_file_loads_and_exports_one_name(kind):
    assert plugin.available(kind)
    for name in plugin.available(kind):
        assert callable(plugin.load(kind, name))


def test_methods_and_models_are_the_files():
    assert {"dp-fedavg", "dp-sgd", "none"} <= set(plugin.available("methods"))
    assert {"cnn", "linear"} <= set(plugin.available("models"))


def test_an_unknown_name_is_told_its_nearest():
    with pytest.raises(SpecError, match="Did you mean 'dp-fedavg'"):
        plugin.load("methods", "dp-fedavgg")
    for name in ("base", "../methods/none", "dp_sgd", "", None):
        with pytest.raises(SpecError, match="unknown method"):
            plugin.load("methods", name)
