"""The frozen Spec of a run, read from TOML, flags or keywords; no other module reads configuration.

One schema: a field of keys.py is a TOML key, a command-line flag (dashes for underscores) and a keyword of
`sordino.train`. The fields of the method and of the algorithm join it, so `--clip 0.5` works wherever there is a clip.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from sordino.contract import robust
from sordino.contract.presence import Stragglers
from sordino.core import check, plugin
from sordino.core.errors import SpecError
from sordino.privacy import trust
from sordino.spec import other_names, windows
from sordino.spec.keys import (
    GROUPS,
    DataKeys,
    LocalKeys,
    MethodKeys,
    ModelKeys,
    PrivacyKeys,
    RoundKeys,
    RunKeys,
    ServerKeys,
)
from sordino.spec.values import frozen, typed

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

NAMED = (  # what a Python caller brings instead
    "dataset", "data_dir", "test", "public_share", "public_data", "partition", "clients", "features", "model",
    "baseline", "audit", "private_data", "without_private",
)  # fmt: skip
PLUGINS = ("methods", "algorithms")  # kinds whose fields are keys too
FEATURES = ("scattering", "silhouettes", "oriented-gradients", "colour-scattering", "drawn-prior")  # features/catalogue
FEDERATIONS = ("simulator", "workers", "ray", "flower")
LEAST_DELTA = 1e-300  # of which accounting can still take a part and a logarithm
AVERAGES = {"none": None, "tail": 0.5, "ema": 0.99, "polynomial": 8.0}  # and their usual parameter


@lru_cache(maxsize=256)
def types_of(of: type) -> dict[str, Any]:
    """Return the types of a class's fields, which take long to look up; nobody may write into them."""
    return typing.get_type_hints(of)


@dataclass(frozen=True)
class Spec(RunKeys, ServerKeys, LocalKeys, RoundKeys, ModelKeys, DataKeys, PrivacyKeys, MethodKeys):
    """All settings of a run, checked on construction."""

    options: tuple[tuple[str, Any], ...] = ()  # the fields of the method and of the algorithm

    def __post_init__(self) -> None:
        hints = types_of(Spec)
        for f in fields():
            typed(f.name, getattr(self, f.name), hints[f.name])
        for name in (
            "epsilon",
            "learning_rate",
            "server_lr",
            "memory_gb",
            "feature_bound",
            "release_noise",
            "local_epochs",
        ):
            if getattr(self, name) is not None:
                check.positive(**{name: getattr(self, name)})
        check.non_negative(
            checkpoint_seconds=self.checkpoint_seconds,
            weight_decay=self.weight_decay,
            warmup=self.warmup,
            without_private=self.without_private,
            workers=self.workers,
            allowed_dropouts=self.allowed_dropouts,
        )
        check.below_one(delta=self.delta)
        if self.delta < LEAST_DELTA:
            raise SpecError(
                f"delta must be at least {LEAST_DELTA:g}, not {self.delta!r}: below that, floating point runs out."
            )
        check.probability(client_rate=self.client_rate)
        check.fraction(momentum=self.momentum, validation=self.validation or 0.0, tuning=self.tuning, late=self.late)
        check.fraction(server_data=self.server_data)
        check.count(clients=self.clients, rounds=self.rounds, views=self.views)
        counts = "max_participations", "local_steps", "batch_size", "records_per_user", "clients_per_user"
        for name in (*counts, "evaluate_every", "blocks", "min_cohort"):
            if getattr(self, name) is not None:
                check.count(**{name: getattr(self, name)})
        if self.public_share is not None:
            check.below_one(public_share=self.public_share)
        if self.batch_rate is not None:
            check.probability(batch_rate=self.batch_rate)
        check.one_of(("research", "secure", None), mode=self.mode)
        check.one_of(("poisson", "fixed"), client_sampling=self.client_sampling)
        check.one_of(("sgd", "momentum", "adam", "rmsprop", "own"), optimizer=self.optimizer)
        check.one_of(("auto", "cpu", "cuda"), device=self.device)
        check.one_of(FEDERATIONS, federation=self.federation)
        _check_features(self.features)
        check.one_of(("test", "validation", "tuning", None), evaluate_on=self.evaluate_on)
        check.one_of(("float32", "bfloat16"), precision=self.precision)
        check.one_of(("rows", "log-rows", "centred", "unit", "none", None), normalise=self.normalise)
        if self.initial_weights_from not in ("public", "own", None):
            raise SpecError(
                "initial_weights_from must be public (the weights were made from public data, or from none) or own "
                f"(from training records of this run), not {self.initial_weights_from!r}. Weights of another run on "
                "the same records are own: no guarantee is carried over from a file. `sordino resume` continues a run."
            )
        if self.viewer is not None:
            trust.viewer(self.viewer)
        if self.classes is not None and (len(self.classes) < 2 or len({*self.classes, ""}) <= len(self.classes)):
            raise SpecError(f"classes must name at least two different labels, none of them empty, not {self.classes}.")
        self._check_pairs()
        self.weights_of_classes()
        (
            self.merging(),
            self.average(),
            self.stragglers(),
            self.method_object(),
            self.algorithm_object(),
            self.channel_object(),
        )

    @property
    def in_workers(self) -> bool:
        """Return whether clients run in processes of their own, which in secure mode alone hold their keys."""
        return self.federation in ("workers", "ray")

    def _check_pairs(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            raise SpecError("give local_steps or local_epochs, not both.")
        if self.batch_size is not None and self.batch_rate is not None:
            raise SpecError("give batch_size or batch_rate, not both.")
        if self.workers and not self.in_workers:
            raise SpecError("workers is their number for federation = workers or ray: set federation too.")
        if self.federation == "workers" and self.device == "cuda":
            raise SpecError(
                "federation = workers computes on CPUs: use device = cpu, or federation = simulator or ray."
            )
        share = {"tuning": self.tuning, "validation": self.validation}.get(self.evaluate_on or "", 1.0)
        if share == 0:
            raise SpecError(
                f"evaluate_on = {self.evaluate_on} needs {self.evaluate_on}: the share of records held out."
            )
        if self.test is not None and self.public_share is not None:
            raise SpecError("test names the public records already: give test or public_share, not both.")
        check.one_of((".", ","), decimal=self.decimal)
        windows.require(self)
        if self.without_private and self.private_data is None:
            raise SpecError("without_private needs private_data: the records that those clients do not hold.")
        if self.stragglers().joining[0] and (self.standardise or self.evaluate_on == "validation"):
            raise SpecError(
                "with joining, some clients come later: evaluate_on = validation and standardise need them all."
            )
        if self.standardise and self.normalise not in (None, "none"):
            raise SpecError(f"normalise = {self.normalise} scales columns already: drop standardise.")
        if self.views > 1 and self.augment == "none":
            raise SpecError("views above 1 need augment: flip or flip-crop.")
        if self.unit != "user" and (self.records_per_user is not None or self.clients_per_user != 1):
            raise SpecError("records_per_user and clients_per_user need unit = user.")
        if self.mode == "secure" and self.seed is not None:
            raise SpecError("a secure run accepts no seed: whoever knows it can subtract the noise. Drop seed.")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise SpecError(f"seed must lie between 0 and 2^63 - 1, not {self.seed}.")
        if self.data_name is not None and self.data_name in plugin.available("data.sets"):
            raise SpecError(f"data_name = {self.data_name} is the name of a shipped benchmark. Choose another.")
        for key in ("name", "data_name"):
            if (given := getattr(self, key)) is not None and not NAME.match(given):
                raise SpecError(
                    f"{key} must be 1 to 64 letters, digits, '.', '_' or '-' and start with a letter or digit, "
                    f"not {given!r}."
                )

    def method_object(self) -> Any:
        return self._made("methods", self.method)

    def algorithm_object(self) -> Any:
        return self._made("algorithms", self.algorithm)

    def channel_object(self) -> Any:
        return plugin.load("channels", self.channel)()

    def _made(self, kind: str, name: str) -> Any:
        option_names = {f.name for f in plugin_fields(kind, name)}
        return plugin.load(kind, name)(**{k: v for k, v in self.options if k in option_names})

    def stragglers(self) -> Stragglers:
        low, dash, high = self.dropout.partition("-")
        try:
            bounds = float(low), float(high if dash else low)
        except ValueError as error:
            raise SpecError(
                f"dropout must be a probability or LOW-HIGH, such as 0.1-0.3, not {self.dropout!r}."
            ) from error
        share, colon, after = self.joining.partition(":")
        try:
            joining = float(share), int(after if colon or float(share) else "0")
        except ValueError as error:
            raise SpecError(f"joining must be SHARE:ROUNDS, such as 0.3:10, not {self.joining!r}.") from error
        return Stragglers(bounds, self.late, self.slow, joining)

    def weights_of_classes(self) -> tuple[float, ...] | None:
        """Return the declared weight of every class; None if none are declared."""
        if self.class_weights is None:
            return None
        try:
            weights = tuple(float(part) for part in self.class_weights.split(","))
        except ValueError as error:
            raise SpecError(
                f"class_weights must be one public number per class, such as 1,5, not {self.class_weights!r}. Weights "
                "computed from the labels would tell how many records each class has, and nobody has paid for that."
            ) from error
        for weight in weights:
            check.positive(class_weights=weight)
        return weights

    def merging(self) -> robust.RobustMerge:
        """Return how the server combines the clients' rows."""
        return robust.parsed(self.merge)

    def average(self) -> tuple[str, float]:
        """Return how the models of the rounds are averaged, and the parameter of the average."""
        kind, colon, text = (self.averaging or "none").partition(":")
        check.one_of(tuple(AVERAGES), averaging=kind)
        usual = AVERAGES[kind]
        try:
            value = float(text) if colon else usual or 0.0
        except ValueError as error:
            raise SpecError(f"averaging = {self.averaging!r}: {text!r} is not a number.") from error
        if kind in ("tail", "ema"):
            check.below_one(**{f"averaging {kind}": value})
        elif kind == "polynomial":
            check.positive(**{"averaging polynomial": value})
        elif colon:
            raise SpecError("averaging = none takes no number.")
        return kind, value

    def to_dict(self) -> dict[str, Any]:
        """Return the keys as in a run file: without empty values, with the options of method and algorithm."""
        values = {f.name: getattr(self, f.name) for f in fields()}
        return {k: v for k, v in values.items() if v is not None} | dict(self.options)


def fields() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(Spec) if f.name != "options"]


def group_of(key: str) -> str:
    """Return the group of a key, such as "privacy"."""
    return next(group for group, keys in GROUPS.items() if key in {f.name for f in dataclasses.fields(keys)})


def plugin_fields(kind: str, name: str) -> list[dataclasses.Field[Any]]:
    """Return the options of a method or an algorithm."""
    return list(dataclasses.fields(plugin.load(kind, name)))


def plugin_help(kind: str, name: str) -> dict[str, str]:
    """Return the help text of every option of a plug-in."""
    return plugin.field_help(plugin.load(kind, name))


def owners(key: str) -> list[str]:
    """Return the methods and algorithms that have an option of that name."""
    return [n for k in PLUGINS for n in plugin.loadable(k) if key in {f.name for f in plugin_fields(k, n)}]


def by_name(values: dict[str, Any]) -> dict[str, Any]:
    """Return the keys as in a run file: an object for a method or algorithm by its name and options, paths as text."""
    out = {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}
    for kind, key in (("methods", "method"), ("algorithms", "algorithm")):
        value = values.get(key)
        if value is None or isinstance(value, str):
            continue
        name = plugin.name_of(kind, type(value))
        if name is None:
            raise SpecError(
                f"{key} must be a name, or an object of one of sordino.{kind}, not {value!r}. Put a class of your own "
                f"into a file FOLDER/{kind}/my_{key}.py, with SORDINO_PLUGINS=FOLDER, so that a run can be resumed."
            )
        options = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if twice := sorted(options.keys() & values.keys()):
            raise SpecError(f"{twice[0]} is given twice: as a key, and by the {key} {value!r}. Give it once.")
        out |= {key: name} | options
    return out


def from_dict(values: dict[str, Any]) -> Spec:
    """Return the spec of these keys; raise SpecError for an unknown key or a value of the wrong type."""
    known = {f.name for f in fields()}
    if "algorithm" not in values:
        values = values | {"algorithm": plugin.load("methods", values.get("method", Spec.method)).algorithm}
    if "channel" not in values:
        values = values | {"channel": plugin.load("methods", values.get("method", Spec.method)).channels[0]}
    chosen = [("methods", values.get("method", Spec.method)), ("algorithms", values.get("algorithm", Spec.algorithm))]
    option_types: dict[str, Any] = {}
    for kind, name in chosen:
        hints = types_of(plugin.load(kind, name))
        option_types |= {f.name: hints[f.name] for f in plugin_fields(kind, name)}
    plain, options = {}, {}
    weights: Any = values.get("class_weights")
    weights = weights.tolist() if hasattr(weights, "tolist") else weights  # an array or a tensor
    if isinstance(weights, list | tuple):
        values = values | {"class_weights": ",".join(str(weight) for weight in weights)}
    for key, value in values.items():
        if key in known:
            plain[key] = frozen(value)
        elif key in option_types:
            options[key] = typed(key, value, option_types[key])
        else:
            raise SpecError(_unknown(key, [name for _, name in chosen], known | option_types.keys()))
    return Spec(**plain, options=tuple(sorted(options.items())))


def completed(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a file in JSON types, with all defaults; unchanged if they are not a valid spec."""
    try:
        return dict(json.loads(json.dumps(from_dict(keys).to_dict())))
    except (SpecError, TypeError):
        return keys


def _check_features(features: str | None) -> None:
    """Require none, or names of fixed features, each at most once, joined by +."""
    if features in (None, "none"):
        return
    parts = str(features).split("+")
    if unknown := [part for part in parts if part not in FEATURES]:
        raise SpecError(
            f"features must be one of {', '.join((*FEATURES, 'none'))}, or several joined by + "
            f"(silhouettes+drawn-prior), not {features!r}: there is no {unknown[0]!r}."
        )
    if len(set(parts)) < len(parts):
        raise SpecError(f"features = {features}: each may be named once.")


def _unknown(key: str, chosen: list[str], known: set[str]) -> str:
    if others := owners(key):
        return f"unknown key {key!r}: it belongs to {others[0]}, not to {' or '.join(chosen)}."
    if said := other_names.hint(key):
        return f"unknown key {key!r}: {said}."
    near = get_close_matches(key, known, n=1)
    return f"unknown key {key!r}." + (f" Did you mean {near[0]!r}?" if near else " `sordino init` lists them all.")


def read(path: Path) -> dict[str, Any]:
    """Return the keys of a run file, without the table [tune], which is for `sordino tune` alone."""
    return {key: value for key, value in _toml(path).items() if key != "tune"}


def read_tune(path: Path) -> dict[str, Any]:
    """Return the table [tune] of a run file; empty if it has none."""
    table = _toml(path).get("tune", {})
    if not isinstance(table, dict):
        raise SpecError(f"{path}: tune must be a table, [tune], not {table!r}.")
    return table


def _toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {path}: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error


plugin.reserve(f.name for f in fields())
