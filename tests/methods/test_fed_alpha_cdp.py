import math
from dataclasses import replace

import pytest

from sordino.core.errors import SpecError
from sordino.methods.fed_alpha_cdp import FedAlphaCdp
from sordino.privacy.accountants import gdp
from sordino.runs import loop
from support.methods import let_out
from support.problems import federation, job, mlp


def test_clip_and_noise_fall_and_the_total_is_kept():
    made = job(method="fed-alpha-cdp", rounds=10, epsilon=1.0, clip=2.0, clip_decay=0.5, noise_decay=0.25)
    declared = [made.method.releases(made.plan, t)[0] for t in range(10)]
    z, bounds = [r.multiplier for r in declared], [r.bound for r in declared]
    assert z[4] == pytest.approx(z[0] * (1 - 0.75 * 0.4))
    assert bounds[0] == pytest.approx(2 * math.sqrt(2)) and bounds[5] == pytest.approx(1.5 * math.sqrt(2))
    assert 0.999 < gdp.epsilon_of_mu(math.sqrt(sum(v**-2 for v in z)), 1e-5) <= 1.0


def test_the_clip_of_the_round_is_the_one_enforced():
    made = job(mlp(), [(50 * x, y) for x, y in federation((1,) * 3)], method="fed-alpha-cdp", rounds=4, clip=0.2)
    for t in range(4):
        (use,) = let_out(made, state=replace(loop.begin(made), round=t))
        sums, each = use.x, use.release.bound / math.sqrt(2)  # of one of both layers
        assert sums.bound == use.release.bound == pytest.approx(made.method.releases(made.plan, t)[0].bound)
        for part in made.model.layout.layers().values():
            norms = sums.value[:, part].norm(dim=1)
            assert float(norms.max()) <= each * (1 + 1e-5)
        assert float(sums.value.norm(dim=1).max()) > 0.7 * each
    assert each < 0.6 * 0.2


def test_clips_and_noise_do_not_depend_on_data():
    """The same plan over other data: the same schedule, bit for bit."""
    one, other = (job(clients=c, method="fed-alpha-cdp") for c in (federation(), federation(seed=1)))
    for t in range(3):
        states = [replace(loop.begin(m), round=t) for m in (one, other)]
        declared = {m.method.releases(m.plan, t, s) for m, s in zip((one, other), states, strict=True)}
        assert len(declared) == 1 and declared == {one.method.releases(one.plan, t)}


def test_bad_decays_are_refused():
    with pytest.raises(SpecError, match="clip_decay"):
        FedAlphaCdp(clip_decay=0.0)
