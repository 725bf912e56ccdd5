"""The privacy card of a run: what its model promises, to whom, and what is assumed; as JSON and as markdown.

It is made of the public files of a run folder alone.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sordino.core.errors import RunError
from sordino.core.parts import PUBLIC, locate
from sordino.core.rounding import up
from sordino.run_folder.folder import INPUTS, RunFolder
from sordino.spec import spec

FOR_OWNER = "(to be written by the owner of the model)"


def card(run: Path, file: str, kind: str) -> dict[str, Any]:
    """Return the privacy card of a finished run as a dictionary.

    Args:
        run: the run folder, or its public part.
        file: the name of the file of the model.
        kind: its format.
    """
    folder = RunFolder(run)
    keys: dict[str, Any] = spec.read(locate(run, PUBLIC, "spec.toml"))
    result, plan = folder.read_json("result.json", PUBLIC), folder.read_json("plan.json", PUBLIC)
    inputs = folder.read_json(INPUTS, PUBLIC) if locate(run, PUBLIC, INPUTS).is_file() else {}
    try:
        promised = result["guarantee"]
        return {
            "model": {
                "file": file,
                "format": kind,
                "architecture": keys.get("model") or "the caller's own",
                "parameters": plan.get("parameters"),
                "features": keys.get("features", "none"),
                "input": inputs,
            },
            "training": {
                "data": keys.get("data_name") or keys.get("dataset") or "records of the caller",
                "public_data": bool(plan.get("public_data")),
                "method": keys.get("method"),
                "algorithm": keys.get("algorithm", plan.get("algorithm")),
                "clients": plan.get("clients"),
                "rounds": result.get("rounds"),
                "version": f"sordino {version('sordino')}",
            },
            "privacy": {
                "unit": promised["unit"],
                "relation": promised["relation"],
                "viewer": promised["viewer"],
                "epsilon": promised["epsilon"],  # None: infinite
                "delta": promised["delta"],
                "mode": promised["mode"],
                "sentence": promised["sentence"],
                "assumptions": list(promised.get("public", ())),
                "against": {v: g["epsilon"] for v, g in result["guarantees"].items()},
                "claimed": result.get("claim"),
                "together": result.get("together"),
            },
            "figures": {"accuracy": result.get("accuracy"), **(result.get("metrics") or {})},
            "evaluated_on": plan.get("evaluated_on"),
            "notes": result.get("notes", []),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),  # of the card
            "intended_use": FOR_OWNER,
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{locate(run, PUBLIC, 'result.json')} is damaged: {error!r}.") from error


def markdown(content: dict[str, Any]) -> str:
    """Return a privacy card as a page."""
    model, training, privacy = content["model"], content["training"], content["privacy"]
    epsilon = "infinite" if privacy["epsilon"] is None else up(privacy["epsilon"])
    rows = {
        "protected": f"each {privacy['unit']} ({privacy['relation']})",
        "against": privacy["viewer"],
        "epsilon (accounted, in total)": epsilon,
        "delta": f"{privacy['delta']:g}",
        "data": training["data"] + (" (public)" if training["public_data"] else ""),
        "method": f"{training['method']} with {training['algorithm']}",
        "clients, rounds": f"{training['clients']}, {training['rounds']}",
        "model": f"{model['architecture']}, {model['parameters']} parameters, features: {model['features']}",
        "file": f"{model['file']} ({model['format']})",
        "made by": f"{training['version']}, {content['date']}",
    }
    shown = {k: v for k, v in content["figures"].items() if v is not None}
    lines = ["# Privacy card", "", privacy["sentence"], ""]
    if privacy["claimed"] is not None:
        lines += [privacy["claimed"]["sentence"], ""]
    if privacy["together"]:
        lines += [f"{privacy['together'][0].upper()}{privacy['together'][1:]}.", ""]
    lines += ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows.items()), ""]
    lines += ["## Figures", "", f"Evaluated on: {content['evaluated_on'] or 'nothing'}.", ""]
    lines += [*(f"- {name.replace('_', ' ')}: {value:.4g}" for name, value in shown.items()), ""] if shown else []
    lines += ["## Taken as public", "", *(f"- {text}" for text in privacy["assumptions"] or ["nothing"]), ""]
    if content["notes"]:
        lines += ["## Notes", "", *(f"- {note}" for note in content["notes"]), ""]
    return "\n".join([*lines, "## Intended use", "", content["intended_use"], ""])
