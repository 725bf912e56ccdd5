import dataclasses
import math
import tomllib

import click
import pytest

from sordino.core import plugin
from sordino.core.errors import SordinoError, SpecError
from sordino.spec import spec, toml
from sordino.spec.spec import Spec, from_dict
from sordino.spec.values import parse
from support.errors import one_line_error

PLUGINS = [(kind, name) for kind in spec.PLUGINS for name in plugin.available(kind)]


def refused(match, **values):
    with one_line_error(SpecError, match):
        from_dict(values)


def test_an_unknown_key_is_told_its_nearest():
    refused("unknown key 'epsilom'. Did you mean 'epsilon'", epsilom=1.0)
    refused("Did you mean 'batch_rate'", batchrate=0.5)
    refused("unknown key 'xyzzy'.*sordino init", xyzzy=1)
    refused("unknown key 'options'", options=(("clip", 3.0),))  # an inner name is not a key


def test_a_key_of_another_method_says_whose_it_is():
    refused("'quantile'.*belongs to dp-fedavg, not to dp-sgd", method="dp-sgd", quantile=0.5)
    refused("'clip'.*not to none", method="none", clip=1.0)
    assert from_dict({"method": "dp-fedavg", "quantile": 0.25}).method_object().quantile == 0.25


def test_an_unknown_method_is_told_its_nearest():
    refused("Did you mean 'dp-sgd'", method="dp-sdg")
    refused("unknown method 5", method=5)


NUMBERS = [f.name for f in spec.fields() if f.type in ("float", "float | None", "int", "int | None")]
WHOLE = [f.name for f in spec.fields() if f.type in ("int", "int | None")]
TEXTS = [f.name for f in spec.fields() if f.type in ("str", "str | None")]
FLAGS = [f.name for f in spec.fields() if f.type == "bool"]
LISTS = [f.name for f in spec.fields() if f.type == "tuple[str, ...] | None"]


def test_every_field_is_one_of_these_types():
    assert len(NUMBERS) + len(TEXTS) + len(FLAGS) + len(LISTS) == len(spec.fields()) > 25


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, False, math.nan, math.inf, -math.inf, 1e400, "1", [1], {"a": 1}], ids=repr)
def test_a_number_is_a_finite_number(name, value):
    refused(name, **{name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_below_its_range_is_refused(name):
    refused(name, **{name: -1})


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_is_not_a_fraction(name):
    refused(f"{name} must be a whole number", **{name: 2.5})
    refused(name, **{name: 2.0})


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_text(name):
    refused(name, **{name: 3})
    refused(name, **{name: True})


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_a_list_of_text_in_a_file_a_flag_and_python(name, tmp_path):
    for value in ("a", 3, [1.5, "a"], [True, "a"], ["a", ["b"]], {"a": 1}):
        refused(f"{name} must be a list of text", **{name: value})
    for value in ([], ["a"], ["a", "a"], ["a", ""]):
        refused(f"{name} must name at least two different labels", **{name: value})
    assert parse(name, "a, b c,1", spec.types_of(Spec)[name]) == ("a", "b c", "1")
    wanted = from_dict({name: ["b", 'say "a"', 1]})
    assert getattr(wanted, name) == ("b", 'say "a"', "1") and hash(wanted)
    (tmp_path / "it.toml").write_text(f"{name} = {toml.to_toml(getattr(wanted, name))}")
    assert from_dict(spec.read(tmp_path / "it.toml")) == wanted == from_dict(spec.completed(wanted.to_dict()))


@pytest.mark.parametrize("name", FLAGS)
def test_true_or_false_is_nothing_else(name):
    for value in (1, 0, "true", "yes", 1.0):
        refused(f"{name} must be true or false", **{name: value})


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
@pytest.mark.parametrize("value", [math.nan, math.inf, "x", True], ids=repr)
def test_a_plugins_own_keys_are_checked_alike(kind, name, value):
    for f in spec.plugin_fields(kind, name):
        hint = getattr(f.type, "__name__", str(f.type))
        if (hint == "bool" and value is True) or (hint == "str" and value == "x" and f.name == "personal_layers"):
            continue
        refused(f.name, **{kind.removesuffix("s"): name, f.name: value})


@pytest.mark.parametrize("name", ["../../x", "..", ".hidden", "a/b", "a\\b", "", "a b", "x" * 65, "a\n", "-rf", "ü"])
def test_a_name_cannot_leave_its_folder(name):
    refused("name must be", name=name)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"mode": "secure", "seed": 1}, "accepts no seed"),
        ({"local_steps": 1, "local_epochs": 1.0}, "not both"),
        ({"batch_size": 1, "batch_rate": 0.5}, "not both"),
        ({"mode": "fast"}, "mode must be one of research, secure"),
        ({"viewer": "me"}, "viewer must be one of"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"device": "tpu"}, "device"),
        ({"client_sampling": "shuffle"}, "client_sampling"),
        ({"features": "pca"}, "features"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 1e-320}, "delta must be at least 1e-300, not 1e-320"),
        ({"client_rate": 0.0}, "client_rate"),
        ({"client_rate": 1.01}, "client_rate"),
        ({"averaging": "tail:1"}, "averaging"),
        ({"rounds": 0}, "rounds"),
        ({"seed": 2**63}, "seed"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_what_makes_no_sense_is_refused(keys, match):
    refused(match, **keys)


def test_a_file_is_read_and_a_broken_one_named(tmp_path):
    good = tmp_path / "good.toml"
    good.write_text('epsilon = 3\nmethod = "dp-fedavg"\nclip = 0.5\n')
    found = from_dict(spec.read(good))
    assert found.epsilon == 3 and found.method_object().clip == 0.5
    for text, match in (
        ("epsilon = 1\nepsilon = 2\n", "good.toml is not valid TOML"),
        ("epsilon = \n", "not valid TOML"),
        ("epsilon = 1e400\n", "epsilon must be finite"),
        ("epsilon = nan\n", "epsilon must be finite"),
        ("epsilon = true\n", "epsilon must be a number"),
        ("[section]\nepsilon = 1\n", "unknown key 'section'"),
        ("rounds = 1979-05-27\n", "rounds must be a whole number"),
    ):
        good.write_text(text)
        with pytest.raises(SpecError, match=match):
            from_dict(spec.read(good))
    good.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="cannot read"):
        spec.read(good)
    with pytest.raises(SordinoError, match="cannot read"):
        spec.read(tmp_path / "missing.toml")


def test_the_template_reads_back_to_the_defaults():
    text = toml.template()
    found = from_dict(tomllib.loads(text))
    assert dataclasses.replace(found, options=()) == Spec()
    assert found.method_object() == Spec().method_object()
    for f in spec.fields():  # every key is there, the empty ones commented out
        assert f"\n{f.name} = " in text or f"\n# {f.name} = " in text


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_the_template_of_every_plugin_can_be_switched_on(kind, name):
    _, _, own = toml.template().partition(f"# --- of {name} only\n")
    lines = [line.removeprefix("# ") for line in own.split("\n\n")[0].splitlines() if line]
    values = tomllib.loads("\n".join(lines)) | {kind.removesuffix("s"): name}
    assert from_dict(values)._made(kind, name) == plugin.load(kind, name)()
    assert len(values) == len(spec.plugin_fields(kind, name)) + 1


def test_flags_fields_and_keys_are_one_schema():
    from sordino.cli.run import run

    flags = {p.name for p in run.params if isinstance(p, click.Option)} - {"as_json", "help", "help_all"}
    keys = {f.name for f in spec.fields()} | {f.name for kind, name in PLUGINS for f in spec.plugin_fields(kind, name)}
    assert flags == keys
    for p in run.params:
        if isinstance(p, click.Option) and p.name in keys:
            assert f"--{p.name.replace('_', '-')}" in p.opts and p.default is None


def test_no_field_hides_another():
    own = {f.name for f in spec.fields()}
    by_kind = {
        kind: {f.name for k, n in PLUGINS if k == kind for f in spec.plugin_fields(k, n)} for kind in spec.PLUGINS
    }
    assert not own & by_kind["methods"] and not own & by_kind["algorithms"]
    assert not by_kind["methods"] & by_kind["algorithms"]


def test_to_dict_and_toml_round_trip():
    odd = 'quote " backslash \\ tab \t newline \n ü \x7f'
    values = {"method": "dp-fedavg", "clip": 0.1 + 0.2, "epsilon": 1e-17, "seed": 2**62, "data_dir": odd}
    found = from_dict(values)
    text = "\n".join(f"{k} = {toml.to_toml(v)}" for k, v in found.to_dict().items())
    assert from_dict(tomllib.loads(text)) == found


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [("3", int, 3), ("0.5", float, 0.5), ("3", float | None, 3.0), ("x", str | None, "x"), ("true", bool, True)],
)
def test_a_flags_text_becomes_a_value(text, hint, value):
    assert parse("k", text, hint) == value


@pytest.mark.parametrize(("text", "hint"), [("x", int), ("0.5", int), ("x", float), ("", float | None), ("yes", bool)])
def test_a_flag_that_is_no_such_value_is_refused(text, hint):
    with pytest.raises(SpecError, match="rate must be"):
        parse("rate", text, hint)
