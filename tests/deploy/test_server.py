"""The server of a federation: a run that is interrupted goes on with its counts, and no site pays twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.sites import LocalPost, local_sites

pytest.importorskip("flwr")

from sordino.core.errors import RunError
from sordino.deploy.server import serve
from sordino.deploy.site_account import read_ledger
from sordino.federations.flower import Replies
from sordino.runs import build, run
from sordino.spec import spec as specs
from sordino.spec.toml import to_toml

KEYS: dict[str, Any] = {
    "dataset": "breast-cancer", "clients": 3, "rounds": 4, "epsilon": 4.0, "seed": 1, "normalise": "none",
}  # fmt: skip


class Interrupted:
    """A post whose server dies once, after the sites have answered an exchange and before it has read the answers."""

    def __init__(self, post: LocalPost, exchanges: int) -> None:
        self.post, self.left = post, exchanges

    def exchange(self, requests: Mapping[str, bytes]) -> Replies:
        replies = self.post.exchange(requests)
        self.left -= 1
        if self.left == 0:
            raise RunError("the server died.")
        return replies


def paid(local: LocalPost) -> list[int]:
    out = []
    for site in local.sites.values():
        with read_ledger(site.folder) as ledger:
            out.append(len(list(ledger.chain.select("kind = 'round'"))))
    return out


def counted(folder: Path) -> list[int]:
    content = json.loads((folder / "private" / "federation.json").read_text())
    return [site["participations"] for site in content["sites"]]


@pytest.mark.parametrize("channel", ["direct", "secure-sum"])
@pytest.mark.parametrize("exchanges", [3, 5])  # hello, open, then rounds
def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path, channel: str, exchanges: int) -> None:
    local = local_sites(tmp_path / "sites", "breast-cancer")
    app = tmp_path / "app"
    app.mkdir()
    (app / "spec.toml").write_text("".join(f"{k} = {to_toml(v)}\n" for k, v in (KEYS | {"channel": channel}).items()))
    with pytest.raises(RunError, match="the server died"):
        serve(Interrupted(local, exchanges), local.roster, app, tmp_path / "runs", {"name": "job"})
    result = serve(local, local.roster, app, tmp_path / "runs", {"resume": "job"})

    lost = sum(record.lost is not None for record in result.history)
    assert [record.round for record in result.history] == [1, 2, 3, 4]
    assert counted(tmp_path / "runs" / "job") == paid(local)
    if channel == "direct":
        keys = KEYS | {"out": str(tmp_path / "here")}
        here = run.execute(build.from_spec(specs.from_dict(keys)), own_model=False)
        for one, two in zip(here.model.parameters(), result.model.parameters(), strict=True):
            assert torch.allclose(one, two, rtol=1e-5, atol=1e-7)
        assert lost == 0 and paid(local) == [4, 4, 4]
    else:
        assert lost <= 1  # a sum is never repeated: two sums with one row would show the difference of two others
