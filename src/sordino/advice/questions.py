"""The two questions to ask before a run, from Python: would it work, and is it private?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from sordino.advice import case, checks, planner
from sordino.advice.finding import Finding
from sordino.advice.planner import PlanQuestion, Recommendation
from sordino.core.errors import SpecError
from sordino.core.types import SampleLoss
from sordino.spec import spec


def plan(
    *,
    clients: int,
    records: int,
    parameters: int,
    epsilon: float,
    delta: float,
    rounds: int | None = None,
    client_rate: float = 1.0,
    batch_rate: float = 1.0,
    method: str | None = None,
) -> list[Recommendation]:
    """Say before training what would work: for every trust model the noise, the rounds and an accuracy band.

    Args:
        clients: How many clients there are.
        records: How many records each client holds.
        parameters: Trainable parameters of the model.
        epsilon: Total epsilon of the whole run.
        delta: Total delta of the whole run.
        rounds: Federated rounds; by default the best of a few numbers.
        client_rate: Share of the clients that takes part in a round.
        batch_rate: Share of a client's records in a local step.
        method: Restrict the answer to what this method offers.

    Returns:
        One recommendation for each trust model, with `verdict`, `noise_multiplier`, `rounds` and `guarantee`.
    """
    question = PlanQuestion(clients, records, parameters, epsilon, delta, rounds, client_rate, batch_rate)
    return planner.answers(question, method)


def check(
    run: str | Path | None = None,
    *,
    model: nn.Module | str | None = None,
    clients: Any = None,
    loss: str | SampleLoss | None = None,
    test: Any = None,
    **keys: Any,
) -> list[Finding]:
    """Look for what makes a run less private than it seems. Nothing is trained and nothing is charged.

    Args:
        run: A run file (TOML) or the folder of a run. Leave it out to describe the run by `keys`.
        model: Your own model, as `sordino.train` takes it, with your own `clients`; or the name of a model.
        clients: Your own clients, as `sordino.train` takes them; or the number of clients of a named dataset.
        loss: The loss, as `sordino.train` takes it.
        test: Public test records, as `sordino.train` takes them.
        **keys: Any key of a run file, such as `method`, `epsilon`, `rounds`.

    Returns:
        Findings, the worst first. Each has a `severity` ("broken", "weak" or "note"), what was `found`, `why` it
        matters and a `fix`.
    """
    if isinstance(model, str):
        keys, model = keys | {"model": model}, None
    if isinstance(clients, int):
        keys, clients = keys | {"clients": clients}, None
    if run is not None:
        if keys or model is not None or clients is not None:
            raise SpecError("sordino.check takes a run file, a run folder, or keys: one of them at a time.")
        if not isinstance(run, str | Path):
            raise SpecError(f"run must be the path of a run file or of a run folder, not {run!r}.")
        path = Path(run)
        return checks.check(case.of_run(path) if path.is_dir() else case.of_spec(spec.from_dict(spec.read(path))))
    if (model is None) != (clients is None):
        raise SpecError("sordino.check needs your model and your clients together; one of them is missing.")
    wanted = spec.from_dict(spec.by_name(keys))
    if model is None:
        return checks.check(case.of_spec(wanted))
    return checks.check(case.of_parts(wanted, model, clients, loss, test))
