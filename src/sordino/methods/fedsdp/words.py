"""Explanations of FedSDP: what was chosen in a round, and why, for `sordino explain`."""

from __future__ import annotations

import math
from typing import Any

UNKNOWN = -1  # round in which shares were learnt, if not recorded (earlier versions)


def sentence(number: int, chosen: dict[str, Any], slope: float, least: float) -> str:
    """Return what was chosen in a round and why.

    Args:
        number: Number of the round.
        chosen: What the method `decided` in the round.
        slope: The option `slope` of the method.
        least: Fraction of an even part of the budget that is reserved for each later participation.
    """
    if chosen["rho"] <= 0:
        return f"Round {number}: no client had any budget left (or none came), so nothing was learnt of anyone's data."
    used, ratio = chosen["ratio_used"], chosen["ratio"]
    asks = "more noise than" if used > 0.5 else "less noise than" if used < 0.5 else "as much noise as"
    text = (
        f"Round {number}: private groups were taken to make {round(100 * used)} % of the step{_led(chosen)}, which "
        f"asks for {asks} an even spread of what was left{_in_vain(chosen, slope, least)}: multiplier "
        f"{chosen['noise_multiplier']:.3g} (had all rounds been alike {chosen['even_multiplier']:.3g}; what earlier "
        f"rounds saved lowers it, what they took raises it). "
        f"That cost {100 * chosen['rho']:.3g} % of the budget, {100 * chosen['left']:.3g} % is left.{_clients(chosen)}"
    )
    if chosen["sums"] > 1:
        text += (
            f" Every group was released apart from the others, each with that noise, so the step had "
            f"{math.sqrt(chosen['sums']):.2g} times as much."
        )
    if not chosen["learnt"]:
        return text + (" All of it was lost in that noise, so nothing new was learnt." if chosen["sums"] > 1 else "")
    each = [f"group {g} {round(100 * share)} %" for g, share in enumerate(chosen["shares"][1:], start=1)]
    first = max(range(len(each)), key=lambda g: chosen["shares"][g + 1])
    drives = f", most of it by group {first + 1}" if len(each) > 1 else ""
    return (
        f"{text} Released anew: {', '.join(each)}, general records {round(100 * chosen['shares'][0])} %; from here on "
        f"the private share is {100 * ratio:.0f} %{drives}."
    )


def _in_vain(chosen: dict[str, Any], slope: float, least: float) -> str:
    """Return a remark if R had no effect, else "".

    R > 1/2 always has an effect. R < 1/2 asks for more than an even part of what is left, which is not granted in the
    last round, nor if that part is not more than what is reserved for each later round.
    """
    if slope == 0:
        return ", without effect (slope is 0)"
    if chosen["ratio_used"] >= 0.5 or not chosen["noise_multiplier"]:
        return ""
    planned = (chosen["even_multiplier"] / chosen["noise_multiplier"]) ** 2 / chosen["rho"]  # number of participations
    every = {k: figures for k, figures in (chosen.get("clients") or {}).items() if figures["rho"] > 0} or {"": chosen}
    reasons = []
    for figures in every.values():
        if figures["left"] <= 1e-6:
            reasons.append("the last participation spends all that is left")
        elif figures["rho"] * planned <= least * (1 + 1e-3):  # tolerance for rounding to whole units
            reasons.append("no more was left than is kept for each later one")
    if not reasons:
        return ""
    some = f" at {len(reasons)} of {len(every)} clients" if len(reasons) < len(every) else ""
    where = f" at client {next(iter(every))}" if len(every) == 1 and "" not in every else some
    return f", without effect{where} ({' or '.join(dict.fromkeys(reasons))})"


def _led(chosen: dict[str, Any]) -> str:
    """Return the group with the largest share behind this round's noise, and when that was learnt."""
    since = chosen.get("learnt_in", UNKNOWN)  # not recorded by earlier versions
    if since == 0:
        return " (nothing was learnt yet)"
    if since == UNKNOWN:
        return ""
    private = chosen["shares_used"][1:]
    first = max(range(len(private)), key=lambda g: float(private[g]))
    if len(private) == 1:
        return f" (learnt in round {since})"
    led = f"led by group {first + 1} with {round(100 * private[first])} %" if private[first] > 0 else "led by none"
    return f" ({led}, learnt in round {since})"


def _clients(chosen: dict[str, Any]) -> str:
    """Return the noise of the requested client, or the range over all clients."""
    every = chosen.get("clients")
    if every is None:  # recorded by an earlier version
        return ""
    if not every:
        return " The client asked for was not in it."
    if len(every) == 1:
        ((client, figures),) = every.items()
        if figures["rho"] <= 0:
            return f" Client {client} had nothing left, so it sent nothing of its data."
        return (
            f" Client {client}: multiplier {figures['noise_multiplier']:.3g}, for {100 * figures['rho']:.3g} % of its "
            f"budget; {100 * figures['left']:.3g} % of it is left."
        )
    paid = sorted((figures["noise_multiplier"], int(client)) for client, figures in every.items() if figures["rho"] > 0)
    (low, least), (high, most) = paid[0], paid[-1]
    if high <= low * (1 + 1e-4):
        return ""
    return f" By client the multiplier was {low:.3g} (client {least}) to {high:.3g} (client {most})."
