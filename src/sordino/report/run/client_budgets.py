"""Clients with budgets of their own: who has which, and, for the owner, how much of it each has used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sordino.core.rounding import up
from sordino.privacy.guarantee import Guarantee
from sordino.report.chart import Axis, Chart, ChartSeries
from sordino.report.document import Block, DataTable, Paragraph
from sordino.report.run.fields import Fields, RunSources
from sordino.report.run.lines import real
from sordino.report.run.promise import stated
from sordino.report.run.words import figures, number_of, percent

PLAN, PARTICIPATION, OWNERS = "public/plan.json: budgets", "private/participation.json: counts", "private/records.jsonl"
SHOWN = 60  # most clients whose bars are drawn
KINDS = 200  # most budgets in the table


@dataclass(frozen=True)
class ClientBudget:
    """A budget and the clients that have it."""

    epsilon: float
    delta: float
    clients: int
    participations: int | None
    multiplier: float | None


def kinds(run: RunSources) -> list[ClientBudget]:
    """Return the budgets of a plan; damaged entries are left out."""
    out = []
    for entry in run.plan.parts("budgets")[:KINDS]:
        epsilon, delta, clients = entry.number("epsilon", 0.0), entry.number("delta", 0.0, 1.0), entry.count("clients")
        if epsilon is not None and delta is not None and clients is not None:
            cap, z = entry.count("participations"), entry.number("noise_multiplier", 0.0)
            out.append(ClientBudget(epsilon, delta, clients, cap, z))
    return out


def client_budgets(run: RunSources) -> list[Block]:
    """Return the table of budgets, and for the owner how much of it every client has used."""
    known = kinds(run)
    out: list[Block] = []
    if known:
        out = [Paragraph(_lead(known, stated(run)[0])), _table(known)]
    left = remaining(run)
    if left:
        out += _left(left)
    elif known and run.owners:
        out += _used(run, known)
    return out


def _lead(known: Sequence[ClientBudget], main: Guarantee | None) -> str:
    everybody = sum(k.clients for k in known)
    low, high = min(k.epsilon for k in known), max(k.epsilon for k in known)
    text = (
        f"Clients have budgets of their own: {number_of(everybody, 'client')} with epsilon from {up(low)} to "
        f"{up(high)}."
    )
    if main is not None and math.isclose(main.epsilon, high, rel_tol=1e-3):
        text += " The total above is that of the largest."
    elif main is not None and main.epsilon < high:
        text += f" The total above, epsilon = {up(main.epsilon)}, holds for all of them: no client spends more than it."
    idle = sum(k.clients for k in known if k.participations == 0)
    if idle:
        text += (
            f" {number_of(idle, 'client')} never {'takes' if idle == 1 else 'take'} part: the budget pays for no round."
        )
    return text


def _table(known: Sequence[ClientBudget]) -> DataTable:
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    capped = any(k.participations is not None for k in known)
    for k in known:
        how = k.participations if capped else k.multiplier
        shown = "-" if how is None else f"{how:,}" if capped else figures(how, 4)
        rows.append((up(k.epsilon), f"{k.delta:g}", f"{k.clients:,}", shown))
        keys.append((k.epsilon, k.delta, float(k.clients), math.nan if how is None else float(how)))
    last = "rounds at most" if capped else "noise multiplier"
    return DataTable("Budgets of clients", ("epsilon", "delta", "clients", last), tuple(rows), tuple(keys), source=PLAN)


# --- for the owner


def remaining(run: RunSources) -> dict[int, float]:
    """Return the share of its budget that every client has left, where the method accounts for each (FedSDP, UDP-FL).

    It stands in the record of the last round that the client took part in.
    """
    owner = run.records.owner
    if owner is None or not run.owners:
        return {}
    out: dict[int, float] = {}
    for record in reversed(owner.rounds):
        each = (record.decided or {}).get("clients")
        if not isinstance(each, dict):
            continue
        for name, entry in each.items():
            value = real(entry.get("left")) if isinstance(entry, dict) else math.nan
            if 0 <= value <= 1 and str(name).isdecimal() and len(str(name)) < 10:
                out.setdefault(int(name), value)
        if len(out) >= (run.plan.count("clients") or 0):
            break
    return dict(sorted(out.items()))


def _left(left: dict[int, float]) -> list[Block]:
    spent_share = {client: 1 - value for client, value in left.items()}
    source = f"{OWNERS}: decided.clients.left (the last round of every client)"
    title = "Share of its budget that every client has used"
    low, high = percent(min(spent_share.values())), percent(max(spent_share.values()))
    much = high if low == high else f"between {low} and {high}"
    summary = (
        f"Of their budgets, clients have used {much}, by what the method recorded of {number_of(len(left), 'client')}."
    )
    return [_bars("budget-clients", title, spent_share, "share of the budget", summary, source)]


def _used(run: RunSources, known: Sequence[ClientBudget]) -> list[Block]:
    """Return how many of its rounds every client has used, where each has a cap and a budget in the public spec."""
    of = _listed(run.spec, run.plan.count("clients") or 0)
    taken = participations(run.owner("participation"))
    caps = {k.epsilon: k.participations for k in known if k.participations is not None}
    if not of or len(of) != len(taken) or not caps:
        return []
    rows: list[tuple[str, ...]] = []
    keys: list[tuple[float | str, ...]] = []
    shares = {}
    for client, (epsilon, count) in enumerate(zip(of, taken, strict=True)):
        cap = next((c for e, c in caps.items() if math.isclose(e, epsilon)), None)
        if cap is None:
            return []
        if cap:
            shares[client] = count / cap
        rows.append((f"{client}", up(epsilon), f"{count:,}", f"{cap:,}"))
        keys.append((float(client), epsilon, float(count), float(cap)))
    source = f"{PARTICIPATION}; {PLAN}; public/spec.toml: budgets"
    full = sum(share >= 1 for share in shares.values())
    summary = f"{number_of(full, 'client')} of {len(shares):,} with a budget for any round used all rounds it pays for."
    table = DataTable(
        "Rounds that every client took part in", ("client", "epsilon", "rounds", "rounds at most"), tuple(rows[:500]),
        tuple(keys[:500]), source=source,
    )  # fmt: skip
    title = "Share of its rounds that every client has used"
    return [_bars("budget-clients", title, shares, "share of its rounds", summary, source), table]


def _bars(id: str, title: str, shares: dict[int, float], label: str, summary: str, source: str) -> Chart:
    """Return bars by client; of many clients, the number of clients by share."""
    clients = list(shares)
    if len(clients) <= SHOWN:
        axis = Axis("client", "category", tuple(str(c) for c in clients))
        points = tuple((float(k), shares[c]) for k, c in enumerate(clients))
        upright = Axis(label, percent=True, low=0.0)
    else:
        counts = [0] * 10
        for share in shares.values():
            counts[min(9, int(10 * min(1.0, max(0.0, share))))] += 1
        axis = Axis(label, "category", tuple(f"{10 * k} to {10 * k + 10} %" for k in range(10)))
        points = tuple((float(k), float(c)) for k, c in enumerate(counts))
        upright = Axis("clients", low=0.0)
    return Chart(id, "bars", title, axis, upright, (ChartSeries(label, points),), summary=summary, source=source)


def _listed(spec: Fields, clients: int) -> list[float]:
    """Return the epsilons of single clients, if the spec lists one for each."""
    text = spec.data.get("budgets") if isinstance(spec.data, dict) else None
    if not isinstance(text, str) or ":" in text or len(text) > 1_000_000:
        return []
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return values if len(values) == clients and all(math.isfinite(v) for v in values) else []


def participations(held: Fields) -> list[int]:
    """Return in how many rounds every client took part; [] if the records tell it only for groups of clients."""
    if held.count("together", 1) != 1:
        return []
    return [int(math.fsum(row)) for row in held.matrix("counts")]
