import json

import pytest

from sordino.core.errors import SpecError
from sordino.privacy import events
from sordino.privacy.events import Composed, FixedSize, Gaussian, NonPrivate, Repeated, Sampled, Visible

ONE_OF_EACH = [
    Gaussian(1.25),
    Sampled(Gaussian(0.1 + 0.2), 1 / 3),
    FixedSize(Gaussian(2.0), 10, 1000),
    Visible(Repeated(Sampled(Gaussian(1.0), 0.05), 20), 0.1),
    Repeated(Gaussian(3.0), 0),
    Composed((Gaussian(1.0), Repeated(Sampled(Gaussian(2.0), 0.5), 7))),
    NonPrivate("because"),
]


def test_one_of_each_is_one_of_each():
    assert {type(e).__name__ for e in ONE_OF_EACH} == set(events._KINDS)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda e: type(e).__name__)
def test_json_round_trip_is_exact(event):
    back = events.from_json(json.loads(json.dumps(events.to_json(event))))
    assert back == event and hash(back) == hash(event)


def test_an_unknown_kind_is_refused():
    for data in ({"kind": "Magic"}, {}, {"kind": "Repeated", "event": {"kind": "os.system"}, "count": 1}):
        with pytest.raises(SpecError, match="unknown privacy event"):
            events.from_json(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0),
        lambda: Gaussian(float("nan")),
        lambda: Gaussian(True),
        lambda: Sampled(Gaussian(1.0), 0.0),
        lambda: Sampled(Gaussian(1.0), 1.5),
        lambda: Visible(Gaussian(1.0), -0.1),
        lambda: Repeated(Gaussian(1.0), -1),
        lambda: Repeated(Gaussian(1.0), 1.5),
        lambda: Repeated(Gaussian(1.0), True),
        lambda: FixedSize(Gaussian(1.0), 11, 10),
        lambda: FixedSize(Gaussian(1.0), 0, 10),
    ],
)
def test_impossible_events_cannot_be_made(make):
    with pytest.raises(SpecError):
        make()


def test_one_private_hole_sinks_the_whole():
    hole = NonPrivate("the reason")
    for event in (
        hole,
        Repeated(hole, 1),
        Sampled(hole, 0.1),
        Visible(hole, 0.1),
        FixedSize(hole, 1, 2),
        Composed((Gaussian(1.0), Repeated(hole, 2))),
    ):
        assert events.non_private(event) == "the reason"
    assert events.non_private(Repeated(hole, 0)) is None  # it has not happened
    assert events.non_private(Composed((Gaussian(1.0),))) is None


def test_steps_counts_elementary_releases():
    assert events.steps(Repeated(Sampled(Repeated(Sampled(Gaussian(1.0), 0.1), 20), 0.5), 30)) == 600
    assert events.steps(Composed((Gaussian(1.0), Repeated(Gaussian(1.0), 4)))) == 5
    assert events.steps(Repeated(Gaussian(1.0), 0)) == 0
