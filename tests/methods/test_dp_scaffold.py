"""Control variates come from noisy gradients alone, and cost nothing."""

import pytest
import torch
from scipy.stats import kstest, norm

from sordino.algorithms.scaffold import Scaffold
from sordino.core.errors import SpecError
from sordino.core.rng import Stream
from sordino.methods.dp_fedprox import DpFedProx
from sordino.methods.dp_scaffold import DpScaffold
from sordino.methods.dp_sgd import DpSgd
from sordino.runs import loop
from support.methods import federation_of, play, price
from support.problems import federation, job
from support.silent import silent_job

RNG, WIDE = Stream.research(31), 4000


def silent(**keys):
    """Weights whose gradient is zero: what moves them is noise."""
    return silent_job(WIDE, bias=False, method="dp-scaffold", learning_rate=1.0, **keys)


def rounds_of(made, rounds):
    state, federation, sent = loop.begin(made), federation_of(made, rng=RNG), []
    for _ in range(rounds):
        done = play(made, range(4), state, federation, RNG)
        sent.append(done.sent["update"])
        state = done.after
    return state, sent


def test_the_control_variate_is_the_mean_of_the_noisy_gradients_and_nothing_else():
    made = silent(local_steps=4)
    _, (rows,) = rounds_of(made, 1)
    moved, control = rows.chunk(2, dim=1)
    assert torch.allclose(control, -moved / 4, atol=1e-6)  # (x - y_i) / (K lr)
    std = made.plan.z / 10 / 2  # the mean of four steps
    assert kstest(control.flatten().numpy(), norm(scale=std).cdf).pvalue > 1e-3
    assert kstest(control.flatten().numpy(), norm(scale=1.1 * std).cdf).pvalue < 1e-3


def test_the_server_adds_up_what_the_clients_keep():
    made = silent(local_steps=3)
    state, sent = rounds_of(made, 3)
    kept = sum(rows.chunk(2, dim=1)[1] for rows in sent)
    assert torch.allclose(state.algorithm.control, kept.mean(dim=0), atol=1e-5)
    assert float(kept.abs().max()) > 0.1


def test_it_costs_what_dp_sgd_costs():
    made = silent(local_steps=3)
    plan = made.plan
    assert price(DpScaffold(), plan) == price(DpSgd(), plan) == price(DpFedProx(), plan)
    assert job(method="dp-sgd", local_steps=3).plan.z == job(method="dp-scaffold", local_steps=3).plan.z


def test_it_is_dp_sgd_with_scaffold():
    pairs = federation((12,) * 4)
    mine, plain = (
        job(clients=pairs, local_steps=3, **keys)
        for keys in ({"method": "dp-scaffold"}, {"method": "dp-sgd", "algorithm": "scaffold"})
    )
    assert isinstance(mine.plan.algorithm, Scaffold)
    assert torch.equal(rounds_of(mine, 2)[0].params, rounds_of(plain, 2)[0].params)
    other = job(clients=pairs, method="dp-sgd", local_steps=3)
    assert not torch.allclose(rounds_of(mine, 2)[0].params, rounds_of(other, 2)[0].params, atol=1e-4)


@pytest.mark.parametrize("method", ["dp-scaffold", "dp-fedprox"])
def test_other_algorithms_are_refused(method):
    with pytest.raises(SpecError, match=f"{method} does not go with fedavgm: it goes with {method[3:]}"):
        job(method=method, algorithm="fedavgm")
