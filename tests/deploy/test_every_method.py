"""Every method, algorithm and channel on five sites in this process: the simulator's model, by the same code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.sites import OPEN, agree, job_of, local_sites

from sordino.core import plugin
from sordino.core.errors import RunError
from sordino.deploy import gathering
from sordino.deploy.agreement import checked
from sordino.deploy.site_account import read_ledger
from sordino.runs import build, run
from sordino.spec import spec as specs

METHODS = tuple(plugin.available("methods"))
EVERYTHING = replace(OPEN, methods=METHODS)
KEYS: dict[str, Any] = {
    "dataset": "breast-cancer", "clients": 5, "rounds": 2, "epsilon": 4.0, "seed": 1, "normalise": "none",
}  # fmt: skip
NEEDS: dict[str, dict[str, Any]] = {
    "fedsdp": {"private_data": "label:1"},
    "fedsdp-paper": {"private_data": "label:1"},
    "pfa": {"budgets": "1,2,4,4,1"},
    "adaptive-noise-paper": {"learning_rate": 1e-4},  # by default its weights are no numbers after a round
}
BUDGETS = "1,2,4,4,1"


def cases() -> Iterator[dict[str, Any]]:
    for name in METHODS:
        for channel in ("direct", "secure-sum"):
            if channel in plugin.load("methods", name).channels:
                yield {"method": name, "channel": channel, **NEEDS.get(name, {})}
    for name in plugin.available("algorithms"):
        steps = {} if name == "fedsgd" else {"local_steps": 2}
        model = {"model": "mlp"} if name == "fedrep" else {}
        yield {"method": "dp-sgd", "algorithm": name, "client_rate": 0.7, **steps, **model}
    yield {"method": "dp-fedavg", "algorithm": "q-fedavg", "local_steps": 2}
    yield {"method": "none", "algorithm": "scaffold", "local_steps": 2}
    yield {"method": "udp-fl", "budgets": "1:0.5,4:0.5"}
    yield {"method": "dp-fedavg", "budgets": BUDGETS, "rounds": 4}


def weights(result: run.Result) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])


@pytest.mark.parametrize("more", list(cases()), ids=lambda more: " ".join(str(value) for value in more.values()))
def test_five_sites_give_the_model_of_the_simulator(tmp_path: Path, more: dict[str, Any]) -> None:
    keys = KEYS | more
    here = run.execute(build.from_spec(specs.from_dict(keys | {"out": str(tmp_path / "here")})), own_model=False)
    post = local_sites(tmp_path / "sites", "breast-cancer", sites=5, policy=EVERYTHING)
    test = gathering.public_test(checked(keys), None, None, None)
    job = job_of(post, agree(post, keys, test), test, out=str(tmp_path / "there"))
    there = run.execute(job, own_model=False)
    expected = weights(here)
    assert bool(torch.isfinite(expected).all())
    assert float((expected - weights(there)).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert there.guarantee.epsilon == pytest.approx(here.guarantee.epsilon, rel=1e-9)
    assert sum(status.failed + status.silent for status in job.federation.status.values()) == 0  # type: ignore[attr-defined]


def test_sites_with_budgets_of_their_own_are_charged_their_own_noise(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer", sites=5, policy=EVERYTHING)
    keys = KEYS | {"method": "pfa", "budgets": BUDGETS}
    job_of(post, agree(post, keys, (torch.zeros(1, 30), torch.zeros(1, dtype=torch.int64))))
    charged = []
    for site in post.sites.values():
        with read_ledger(site.folder) as ledger:
            (entry,) = ledger.chain.select("kind = 'plan'")
            charged.append(entry.epsilon)
    assert charged == pytest.approx([1, 2, 4, 4, 1], rel=1e-3)


def test_a_site_refuses_a_budget_of_its_own_beyond_its_policy(tmp_path: Path) -> None:
    post = local_sites(tmp_path / "sites", "breast-cancer", sites=5, policy=replace(EVERYTHING, epsilon_per_job=3.0))
    keys = KEYS | {"method": "pfa", "budgets": BUDGETS}
    with pytest.raises(RunError, match=r"site-3.*the policy allows 3 per job.*site-4") as refused:
        job_of(post, agree(post, keys, (torch.zeros(1, 30), torch.zeros(1, dtype=torch.int64))))
    assert "site-1:" not in str(refused.value)
