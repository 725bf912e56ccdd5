"""The trade-off curve, how sure an alarm makes an attacker, and the best rates of success, against other formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from sordino.privacy.guarantee import Guarantee
from sordino.report.chart import Chart
from sordino.report.document import DataTable
from sordino.report.run.attackers import after_alarm, missed, section
from sordino.report.run.pricing import AttackBound, attack_bound
from support.run_records import MULTIPLIER, ROUNDS, accounting, guarantee, infinite, sources, write

MU = math.sqrt(ROUNDS) / MULTIPLIER


def charts(run):
    return {b.id: b for b in section(sources(run)).blocks if isinstance(b, Chart)}


def series(chart, start):
    return next(s for s in chart.series if s.name.startswith(start))


def tables(run):
    return [b for b in section(sources(run)).blocks if isinstance(b, DataTable)]


def share(text):
    return float(text.rstrip(" %")) / 100


def test_the_curve_of_gaussian_noise_is_that_of_gaussian_differential_privacy(tmp_path):
    chart = charts(write(tmp_path / "run"))["trade-off"]
    x, y = np.array(series(chart, "this run").points).T
    true = norm.cdf(norm.ppf(1 - x) - MU)  # Dong, Roth and Su (2022), equation (6)
    assert np.all(y <= true + 1e-9) and np.max(true - y) < 0.01  # a lower bound of the misses, and a close one
    wrong = norm.cdf(norm.ppf(1 - x) - 1.1 * MU)
    assert np.max(y - wrong) > 0.01  # the test can see ten per cent
    bound = np.array(series(chart, "epsilon = ").points)[:, 1]
    assert series(chart, "epsilon = ").role == "limit" and np.all(bound <= np.interp(x, x, y) + 1e-9)
    assert series(chart, "guessing").points == ((0.0, 1.0), (1.0, 0.0))


def test_epsilon_and_delta_alone_give_two_lines(tmp_path):
    run = write(tmp_path / "run", accounting=None)  # nothing to price again
    chart = charts(run)["trade-off"]
    g = guarantee()
    x, y = np.array(series(chart, "epsilon = ").points).T
    e, d = math.exp(g["epsilon"]), g["delta"]
    np.testing.assert_allclose(y, np.maximum(0, np.maximum(1 - d - e * x, (1 - d - x) / e)), atol=1e-12)
    assert [s.role for s in chart.series] == ["reference", "data"] and "alone implies" in chart.source
    close = Guarantee(2.99925, 1e-5, "record", "add/remove", "server", 3, "secure")
    assert "(3, 1e-05) alone implies" in attack_bound(close, None, "").formula  # an epsilon is never rounded down


def test_an_alarm_of_a_pure_release_multiplies_the_odds_by_e_to_the_epsilon():
    bound = AttackBound(((1.5, 0.0),), "", "")
    for prior in (0.001, 0.01, 0.3, 0.5, 0.9):
        odds = prior / (1 - prior) * math.exp(1.5)
        assert after_alarm(prior, bound, 0.01) == pytest.approx(odds / (1 + odds))
    assert after_alarm(0.0, bound, 0.01) == 0.0 and after_alarm(1.0, bound, 0.01) == 1.0
    assert after_alarm(0.3, AttackBound(((0.0, 0.0),), "", ""), 0.1) == pytest.approx(0.3)  # nothing learnt


def test_the_curve_has_its_corners():
    x, y = np.array(missed(AttackBound(((3.0, 0.0),), "", ""))).T
    corner = 1 / (1 + math.exp(3.0))
    assert x[0] == 0 and x[-1] == 1 and np.all(np.diff(x) > 0)
    assert np.max(np.abs(np.interp(corner, x, y) - corner)) < 1e-3


def test_the_posterior_of_the_run_is_never_above_that_of_epsilon_and_delta(tmp_path):
    chart = charts(write(tmp_path / "run"))["posterior"]
    own, alone = series(chart, "at 1 % false"), series(chart, "epsilon = ")
    assert all(a[1] <= b[1] + 1e-12 for a, b in zip(own.points, alone.points, strict=True))
    assert all(p[1] >= p[0] - 1e-12 for p in own.points)  # an alarm never lowers a belief
    names = [s.name for s in chart.series]
    assert names[0] == "nothing learnt" and "at 0.1 % false alarms" in names and "at 10 % false alarms" in names


def test_the_table_rounds_up_and_agrees_with_the_gaussian_formula(tmp_path):
    rates, *others = tables(write(tmp_path / "run"))
    assert not others  # both viewers are promised the same
    assert [row[0] for row in rates.rows] == ["0.1 %", "1 %", "10 %"]
    for row, rate in zip(rates.rows, (0.001, 0.01, 0.1), strict=True):
        true = norm.cdf(norm.ppf(rate) + MU)
        assert true <= share(row[1]) + 1e-12 and share(row[1]) < true + 0.002
        assert share(row[1]) <= share(row[3])
        assert share(row[5]) == pytest.approx(true / (true + rate), abs=0.03)


def test_every_viewer_has_a_row_where_they_differ(tmp_path):
    run = write(tmp_path / "run", (guarantee(), guarantee("public", epsilon=0.25), infinite("client")))
    rows = tables(run)[-1].rows
    assert [r[2] for r in rows] == [f"{math.ceil(1000 * guarantee()['epsilon']) / 1000:g}", "0.25", "infinite"]
    assert rows[2][3:] == ("no limit", "no limit")
    assert share(rows[1][3]) == pytest.approx(0.01 * math.exp(0.25), abs=0.001)


def test_the_lower_bound_of_an_audit_is_drawn_where_it_is_about_the_same_unit(tmp_path):
    audit = {"unit": "record", "viewer": "server", "confidence": 0.95, "least": 0.5, "alarm": False}
    chart = charts(write(tmp_path / "run", audit=audit))["trade-off"]
    line = dict(series(chart, "audited: epsilon is at least 0.5").points)
    assert line[0.5] == pytest.approx((1 - 1e-5 - 0.5) / math.exp(0.5)) and "public/audit.json" in chart.source
    other = charts(write(tmp_path / "other", audit=audit | {"unit": "client"}))["trade-off"]
    assert not any("audited" in s.name for s in other.series)


def test_a_very_large_epsilon_and_none_at_all(tmp_path):
    run = write(tmp_path / "run", (guarantee(epsilon=1e9),), accounting=None)
    assert all(0 <= p[1] <= 1 for c in charts(run).values() for s in c.series for p in s.points)
    assert tables(run)[0].rows[1][1] == "100 %"
    assert section(sources(write(tmp_path / "none", (infinite(), infinite("public"))))) is None
    zero = write(tmp_path / "zero", (guarantee(epsilon=0.0, delta=0.0),), accounting=None)
    assert tables(zero)[0].rows[1][1] == "1 %"


def test_a_promise_is_not_called_a_guarantee(tmp_path):
    run = write(tmp_path / "run", finished=False, accounting=accounting())
    assert section(sources(run)).title == "What an attacker may achieve, if the promise is kept"
