"""Explanations of what udp-fl records of a round: which kind of client uses which noise and why, the statistics of the
released update, the noise multipliers and the remaining budget, and the gain of the server's path."""

from __future__ import annotations

from typing import Any

from sordino.methods.udp_fl import harmonizer, seen


def explain(rounds: list[dict[str, Any]]) -> list[str]:
    """Explain the recorded rounds in sentences."""
    out: list[str] = []
    for record in rounds:
        decided, number = record.get("decided") or {}, record["round"]
        out += chosen(decided, "choice")
        if "choice" in decided or any("choice" in kind for kind in decided.get("kinds", ())):
            out += sensitivity(decided)
            out += budgets(decided)
        for z, strength in decided.get("penalty", {}).items():
            out.append(f"Clients with noise multiplier {z} are pulled with lambda = {strength:.3f}.")
        if "multiplier" in decided:
            out.append(managed(number, decided))
        if "seen" in decided:
            out += looked(number, decided)
    out += path(rounds)
    last = (rounds[-1].get("decided") or {}) if rounds else {}
    if "renyi" in last:
        noise = "" if "kinds" in last else f"{last['mechanism']} noise of scale {_scales(last)} a step; "
        mean = ", on average over the clients that were heard" if "multiplier" in last else ""
        whose = " for the run's whole epsilon, the same share of less for a smaller budget" * ("multipliers" in last)
        out.append(
            f"After round {rounds[-1]['round']}: {noise}{100 * last['renyi'] / last['renyi_total']:.1f} % of the run's "
            f"privacy loss was spent{mean}, measured as a Renyi divergence of order {last['order']:g}: "
            f"{last['renyi']:.4g} of {last['renyi_total']:.4g}{whose}."
        )
    return out


def path(rounds: list[dict[str, Any]]) -> list[str]:
    """Explain what the path gained in the last round that had one."""
    for record in reversed(rounds):
        decided = record.get("decided") or {}
        if "path_loss" in decided:
            along, straight = (decided[k][len(decided[k]) // 2] for k in ("path_loss", "straight_loss"))
            losses = ["not finite" if loss is None else f"{loss:.4g}" for loss in (along, straight)]
            return [
                f"Round {record['round']}: halfway between the first two models the loss on the server's data was "
                f"{losses[0]} on the path, {losses[1]} on the straight line."
            ]
    return []


def budgets(decided: dict[str, Any]) -> list[str]:
    """Explain whom the Harmonizer's scales apply to if clients have their own budgets."""
    if "multipliers" not in decided:
        return []
    each = ", ".join(f"{float(z):.4g} ({n} clients)" for z, n in decided["multipliers"].items())
    over = " over the whole run" if "even_multiplier" in decided else ""
    return [
        f"These scales are for the run's whole epsilon (noise multiplier {decided['noise_multiplier']:.4g}{over}); "
        f"clients with budgets of their own have the same mechanism with noise multipliers {each}{over}."
    ]


def _scales(decided: dict[str, Any]) -> str:
    """Return the noise scales of a step, one for each budget if clients have their own."""
    counts = {float(z): n for z, n in decided.get("multipliers", {}).items()}
    if not counts:
        return f"{decided['scale']:.4g}"
    mean = sum(z * n for z, n in counts.items()) / sum(counts.values())
    unit = decided["scale"] / (mean if "even_multiplier" in decided else decided["noise_multiplier"])
    return ", ".join(f"{z * unit:.4g} for {n} clients" for z, n in counts.items())


def chosen(decided: dict[str, Any], key: str) -> list[str]:
    """Explain the Harmonizer's choice and its reasons, for each kind of client if there are several."""
    if key in decided:
        return harmonizer.why(decided[key])
    out = []
    for kind in decided.get("kinds", ()):
        if key in kind:
            out += [f"{kind['clients']} clients, {_of(kind)}:", *harmonizer.why(kind[key])]
    return out


def sensitivity(decided: dict[str, Any]) -> list[str]:
    """State the sensitivity of a step, for each kind of client if there are several."""
    out = []
    for kind in decided.get("kinds") or [decided]:
        if "sensitivity" not in kind:  # recorded by an earlier version
            continue
        bound, norm = kind["sensitivity"], kind["norm"]
        whose = f"of clients with {_of(kind)} " if "profile" in kind else ""
        out.append(
            f"One record moves the sum of a step {whose}by at most {bound:.4g} in the L{norm} norm, the clip for "
            f"{kind['mechanism']} noise."
        )
    return out


def managed(number: int, decided: dict[str, Any]) -> str:
    """State the managed noise multipliers of a round and the budget that is left."""
    low, middle, high = decided["multiplier"]
    if not decided["heard"] or high == 0:
        return f"Round {number}: no client was heard that had any budget left."
    same = high - low <= 1e-5 * high
    text = f"{middle:.4g} for all" if same else f"from {low:.4g} to {high:.4g}, on average {middle:.4g}"
    least, mean, most = decided["left"]
    left = (
        f"{100 * mean:.3g} %" if most - least < 5e-4 else f"{100 * mean:.3g} % ({100 * least:.3g} to {100 * most:.3g})"
    )
    silent = f"; {decided['silent']} of them had nothing left and sent zeros" if decided["silent"] else ""
    return (
        f"Round {number}: noise multiplier {text} of {decided['heard']} clients (were all in every round: "
        f"{decided['even_multiplier']:.4g}). That cost {100 * decided['spent']:.3g} % of a client's budget, {left} is "
        f"left{silent}.{_asked(decided)}"
    )


def _asked(decided: dict[str, Any]) -> str:
    """State the figures of the client selected with `explain --client`, if one is."""
    if not decided["clients"]:
        return " The client asked for was not in it."
    if len(decided["clients"]) > 1 or decided["heard"] == 1:
        return ""
    ((client, figures),) = decided["clients"].items()
    if figures["noise_multiplier"] == 0:
        return f" Client {client} had nothing left."
    return f" Client {client}: {figures['noise_multiplier']:.4g}, {100 * figures['left']:.3g} % of its budget is left."


def looked(number: int, decided: dict[str, Any]) -> list[str]:
    """Explain the statistics of the released update, and the mechanism that was chosen by them."""
    look = decided["seen"]
    text = (
        f"Round {number}: the signal in the released mean update was {look['signal']:.3g} times its noise in variance, "
        f"kurtosis {look['kurtosis']:.3g}"
    )
    if not look["visible"]:
        text += ", too little to judge by"
    elif "density" in look:  # else recorded by an earlier version
        text += f"; about {100 * look['density']:.3g} % of the coordinates carry it, {_tail(look['tail'])}"
    out = [text + "; " + "; ".join(_after(kind) for kind in decided.get("kinds") or [decided]) + "."]
    for kind in decided.get("kinds") or [decided]:
        if _next(kind) != kind["mechanism"]:
            out += harmonizer.why(kind["next"])
    return out


def _after(kind: dict[str, Any]) -> str:
    whose = f" for {_of(kind)}" if "profile" in kind else ""
    new = _next(kind)
    return f"{new} stays{whose}" if new == kind["mechanism"] else f"{new} follows {kind['mechanism']}{whose}"


def _next(kind: dict[str, Any]) -> str:
    return str(kind["next"]["candidates"][0]["mechanism"])


def _of(kind: dict[str, Any]) -> str:
    return f"profile {kind['profile']}, compute {kind['resources']}, data {kind['data']}"


def _tail(value: float | None) -> str:
    if value is None:
        return "how heavy their tails are is lost in the noise"
    low, high = (seen.NORMAL + 1) / 2, (seen.NORMAL + seen.LAPLACE) / 2
    kind = "lighter than normal" if value < low else "like a normal law's" if value < high else "like a Laplace law's"
    return f"with tails {kind if value < 1.5 * seen.LAPLACE else 'heavier than Laplace'} ({value:.2g})"
