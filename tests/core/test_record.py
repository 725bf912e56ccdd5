import json
import math

from sordino.core.record import RoundRecord

ROUND = RoundRecord(3, 10, {"server": math.inf, "public": 0.1 + 0.2}, 400, 800, 0.25, 1.5, 0.75, 0.1)


def test_a_record_comes_back_bit_for_bit_with_its_infinities():
    assert RoundRecord.from_line(ROUND.to_line()) == ROUND
    bare = RoundRecord(1, 0, {"server": 0.0}, 0, 0, 0.0)
    assert RoundRecord.from_line(bare.to_line()) == bare


def test_a_line_is_strict_json_on_one_line():
    diverged = RoundRecord(1, 1, {"server": math.inf}, 1, 1, 1.0, loss=math.nan)
    line = diverged.to_line()
    assert "\n" not in line

    def refuse(name):
        raise ValueError(name)

    json.loads(line, parse_constant=refuse)  # neither NaN nor Infinity, which are not JSON
    back = RoundRecord.from_line(line)
    assert back.loss is None and back.epsilon == {"server": math.inf}
