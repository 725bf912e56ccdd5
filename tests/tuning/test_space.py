"""The search space: what may be searched, and how it is drawn."""

import numpy as np
import pytest

from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.spec import spec
from sordino.tuning import space

WANTED = spec.from_dict({"epsilon": 2.0})


def test_a_file_and_flags_mean_the_same():
    table = {"learning_rate": {"low": 0.5, "high": 8, "log": True}, "clip": [0.25, 1.0], "schedule": ["linear"]}
    flags = ["learning-rate=0.5:8:log", "clip=0.25,1.0", "schedule=linear"]
    assert space.from_table(table) == space.from_flags(flags)
    assert space.to_json(space.from_flags(flags)) == table
    assert set(space.checked({}, WANTED)) == {"learning_rate", "clip"}
    assert set(space.checked({}, spec.from_dict({"method": "none"}))) == {"learning_rate"}


def test_draws_fill_the_space_and_stay_inside():
    wide = space.from_flags(["learning_rate=0.01:100:log", "momentum=0.1:0.9", "warmup=0:3", "clip=0.5,1,2"])
    drawn = [space.draw(wide, Stream.research(1).at(i)) for i in range(600)]
    logs = np.log10([d["learning_rate"] for d in drawn])
    assert abs(logs.mean()) < 0.15 and -2 <= logs.min() < -1.9 and 1.9 < logs.max() <= 2
    assert abs(np.mean([d["momentum"] for d in drawn]) - 0.5) < 0.03
    assert {d["warmup"] for d in drawn} == {0, 1, 2, 3} and {d["clip"] for d in drawn} == {0.5, 1, 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon=1,2", "total"),
        ("rounds=5,10", "cost the same"),
        ("clients=5,10", "all trials share"),
        ("lerning_rate=1,2", "Did you mean"),
        ("clip=0,1", "positive"),
        ("clip=2:1", "low must be below high"),
        ("clip=0:1:log", "above 0"),
        ("clip=1:2:linear", "only :log"),
        ("clip=", "KEY=A,B,C"),
        ("clip=1,1", "twice"),
        ("learning_rate=fast,slow", "number"),
    ],
)
def test_a_wrong_space_is_one_clear_line(text, words):
    with pytest.raises(SpecError, match=words):
        space.checked(space.from_flags([text]), WANTED)
