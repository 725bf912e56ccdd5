import json
import math
from dataclasses import replace

from sordino.core.record import OwnerRecord, RoundRecord

ROUND = RoundRecord(3, {"server": math.inf, "public": 0.1 + 0.2}, 1.5, 0.75, {"worst_class": 0.1})
OWNERS = OwnerRecord(3, 10, 400, 800, 0.25, answers=9, noise=0.1 + 0.2, decided={"clip": 0.5, "clients": {"3": 1.0}})


def test_a_record_comes_back_bit_for_bit_with_its_infinities():
    assert RoundRecord.from_line(ROUND.to_line()) == ROUND
    bare = RoundRecord(1, {"server": 0.0})
    assert RoundRecord.from_line(bare.to_line()) == bare
    assert OwnerRecord.from_line(OWNERS.to_line()) == OWNERS


def test_figures_of_single_clients_take_no_room_where_there_are_none():
    last = replace(OWNERS, by_client={"metric": "accuracy", "clients": {"0": [0.5, 4]}})
    assert OwnerRecord.from_line(last.to_line()) == last and "by_client" not in OWNERS.to_line()


def test_a_line_of_an_earlier_version_held_both_and_is_read_as_either():
    line = json.dumps(json.loads(OWNERS.to_line()) | json.loads(ROUND.to_line()) | {"noise": OWNERS.noise})
    assert RoundRecord.from_line(line) == replace(ROUND, noise=OWNERS.noise) and OwnerRecord.from_line(line) == OWNERS


def test_a_line_is_strict_json_on_one_line():
    diverged = RoundRecord(1, {"server": math.inf}, loss=math.nan)
    line = diverged.to_line()
    assert "\n" not in line

    def refuse(name):
        raise ValueError(name)

    json.loads(line, parse_constant=refuse)  # neither NaN nor Infinity, which are not JSON
    back = RoundRecord.from_line(line)
    assert back.loss is None and back.epsilon == {"server": math.inf}
