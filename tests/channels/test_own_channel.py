"""A channel of one's own, from one file; one clear error where it is no channel."""

from __future__ import annotations

import pytest

import sordino
from sordino.core import plugin
from sordino.core.errors import SordinoError, SpecError
from sordino.federations import wire
from sordino.privacy.events import GaussianEvent
from sordino.spec import spec
from support.methods import play
from support.problems import federation, job, linear, registry

PIGEON = '''
from dataclasses import dataclass, replace
from typing import ClassVar

__all__ = ["Pigeon"]

@dataclass(frozen=True)
class Pigeon:
    """Messages arrive the other way round, and nothing is made of it."""

    name: ClassVar[str] = "pigeon"
    shows_rows: ClassVar[bool] = True
    like: ClassVar[str] = "direct"

    def seal(self, message, cohort):
        return message

    def carry(self, message, rng):
        return replace(message, fields={k: v.flip(0) for k, v in message.fields.items()}, ids=None)

    def split(self, crowd):
        return 1

    def cost(self, event, viewer, crowd, linear=False, more=0.0):
        return event
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path))
    (tmp_path / "channels").mkdir()

    def put(text, name="pigeon"):
        (tmp_path / "channels" / f"{name}.py").write_text(text)

    yield put
    plugin.sys.modules.pop(f"{plugin.PREFIX}channels.pigeon", None)


def test_it_carries_messages_and_is_priced(write):
    write(PIGEON)
    assert plugin.available("channels") == ["direct", "pigeon", "secure-sum", "shuffler"]
    made, direct = (job(method="nbafl", channel=c) for c in ("pigeon", "direct"))
    assert {made.plan.channel.name, direct.plan.channel.name} == {"pigeon", "direct"}
    assert made.promise.epsilon == direct.promise.epsilon and made.promise.channel == "pigeon"
    assert "what the channel pigeon shows" in made.promise.sentence()
    one, other = play(made), play(direct)
    assert one.seen.ids is None and (one.seen["update"].flip(0) == other.seen["update"]).all()
    assert made.guarantee("public", 3, 3).epsilon > direct.guarantee("public", 3, 3).epsilon  # it claims no credit
    assert made.method.releases(made.plan)[0].mechanism.event() == GaussianEvent(made.plan.z)


def test_a_method_goes_with_the_channels_it_names(write):
    write(PIGEON.replace('    like: ClassVar[str] = "direct"\n', ""))
    with pytest.raises(SpecError, match="nbafl does not go with channel = pigeon"):
        job(method="nbafl", channel="pigeon")


@pytest.mark.parametrize("verb", plugin.VERBS)
def test_a_verb_that_is_missing_is_named(write, verb):
    write(PIGEON.replace(f"def {verb}(", f"def not_{verb}("))
    with pytest.raises(SpecError, match=rf"the channel pigeon lacks {verb}: a channel has seal, carry, split, cost"):
        spec.from_dict({"channel": "pigeon"})


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"pigeon"', '"dove"', 'needs the class variables name = "pigeon"'),
        ("    shows_rows: ClassVar[bool] = True\n", "", "shows_rows = True or False"),
        ("    name: ClassVar", "    speed: float\n    name: ClassVar", "cannot be made: TypeError"),
        ('__all__ = ["Pigeon"]', "pigeon = 3\n__all__ = ['pigeon']", "must be a class"),
        ("from typing", "from no_such_module", "fails: ModuleNotFoundError"),
    ],
)
def test_what_is_no_channel_is_refused_in_one_line(write, old, new, error):
    write(PIGEON.replace(old, new))
    with pytest.raises(SpecError, match=error) as found:
        spec.from_dict({"channel": "pigeon"})
    assert "\n" not in str(found.value)


def test_the_names_of_ours_are_taken(write):
    write(PIGEON, "shuffler")
    with pytest.raises(SpecError, match="a plug-in is called shuffler"):
        spec.from_dict({"channel": "shuffler"})


def test_methods_that_read_rows_refuse_a_channel_that_shows_none(write):
    write(PIGEON.replace("shows_rows: ClassVar[bool] = True", "shows_rows: ClassVar[bool] = False"))
    with pytest.raises(SpecError, match="adaptive-noise-paper reads single clients' rows"):
        job(method="adaptive-noise-paper", channel="pigeon")
    assert job(method="nbafl", channel="pigeon").plan.channel.name == "pigeon"


@pytest.mark.parametrize(
    ("verb", "answer", "words"),
    [
        ("seal", "None", "pigeon.seal must return a Message, not nothing"),
        ("seal", "message.fields", "pigeon.seal must return a Message, not a dict"),
        ("seal", "1 / 0", r"pigeon.seal fails \(pigeon.py, line \d+\): ZeroDivisionError: division by zero"),
        ("carry", "3", "pigeon.carry must return a Message, not a int"),
        ("carry", "[][0]", r"pigeon.carry fails \(pigeon.py, line \d+\): IndexError"),
        ("split", "0", "pigeon.split must return a whole number from 1 to the 8 clients, not 0"),
        ("split", "9", "from 1 to the 8 clients, not 9"),
        ("split", "2.0", "not 2.0"),
        ("split", "True", "not True"),
        ("split", "crowd.size", r"pigeon.split fails \(pigeon.py, line \d+\): AttributeError"),
        ("cost", "1.5", "pigeon.cost must return an Event, not a float"),
        ("cost", "None", "pigeon.cost must return an Event, not nothing"),
        ("cost", "event.size", r"pigeon.cost fails \(pigeon.py, line \d+\): AttributeError"),
    ],
)
def test_what_its_verbs_get_wrong_is_one_line_before_anything_is_paid(write, tmp_path, verb, answer, words):
    lines = PIGEON.splitlines()
    at = next(k for k, line in enumerate(lines) if f"def {verb}(" in line)
    lines[at + 1] = f"        return {answer}"
    write("\n".join(lines))
    keys = {"method": "nbafl", "channel": "pigeon", "rounds": 1, "device": "cpu", "out": str(tmp_path), "name": "it"}
    with pytest.raises(SordinoError, match=words) as found:
        sordino.train(linear(), federation(), **keys)
    assert "\n" not in str(found.value) and not (tmp_path / "it").exists() and not registry().exists()


def test_it_travels_to_other_processes_as_it_is(write):
    write(PIGEON)
    channel = job(method="nbafl", channel="pigeon").plan.channel
    again = wire.unpacked(wire.packed(channel))
    assert again == channel and again.name == "pigeon" and again.like == "direct" and again.shows_rows
