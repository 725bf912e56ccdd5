"""TOML, flags or keywords -> one frozen Spec; the only reader of configuration.

One schema: a field below is a TOML key, a command-line flag (dashes for underscores) and a keyword of
`sordino.train`. A method's own fields join it, so `--clip 0.5` works wherever the method has a clip.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
import types
import typing
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sordino.core import check, plugin
from sordino.core.errors import SpecError
from sordino.privacy import trust

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

NAMED = ("dataset", "data_dir", "clients", "features", "model", "baseline")  # what a Python caller brings instead


def _f(default: Any, help: str, group: str) -> Any:
    return field(default=default, metadata={"help": help, "group": group})


@dataclass(frozen=True)
class Spec:
    method: str = _f("dp-sgd", "what clients and server do: see `sordino methods`", "method")
    epsilon: float = _f(2.0, "total privacy budget of the whole run", "privacy")
    delta: float = _f(1e-5, "total delta of the whole run", "privacy")
    viewer: str | None = _f(
        None, "against whom: server, public, client, server+N colluding clients (default: the method's own)", "privacy"
    )
    max_participations: int | None = _f(None, "rounds in which one client may take part at most", "privacy")
    budgets: str | None = _f(
        None, "personal budgets: a CSV file (client, epsilon, delta), or epsilon:share pairs: 0.5:0.4,2:0.6", "privacy"
    )
    mode: str = _f("research", "research (seeded, repeatable) or secure (keyed by the operating system)", "privacy")
    seed: int | None = _f(None, "seed of a research run (default 0); a secure run accepts none", "privacy")
    dataset: str = _f("mnist", "mnist, or the path of an .npz file", "data")
    data_dir: str | None = _f(None, "folder in which an .npz file is looked for", "data")
    clients: int = _f(50, "how many clients the training records are dealt to", "data")
    features: str = _f("scattering", "scattering (fixed, data-independent) or none", "data")
    model: str = _f("linear", "linear or cnn", "model")
    fix_model: bool = _f(False, "replace layers that cannot be trained privately", "model")
    rounds: int = _f(50, "federated rounds", "rounds")
    client_sampling: str = _f("poisson", "poisson, or fixed: cohorts of a fixed size", "rounds")
    client_rate: float = _f(1.0, "share of the clients expected in a round; 1 means all of them", "rounds")
    local_steps: int | None = _f(None, "gradient steps of a client in a round (default 1)", "local")
    local_epochs: float | None = _f(None, "or: passes of a client over its data in a round", "local")
    batch_size: int | None = _f(None, "expected records in a step", "local")
    batch_rate: float | None = _f(None, "or: expected share of a client's records in a step (default 1)", "local")
    optimizer: str = _f("sgd", "the client's: sgd, momentum, adam or rmsprop", "local")
    learning_rate: float | None = _f(
        None, "the client's (default 0.1; on scattering features with the linear model 8)", "local"
    )
    momentum: float = _f(0.9, "of the client's momentum, adam and rmsprop", "local")
    server_lr: float = _f(1.0, "the server's learning rate on the averaged update", "server")
    server_momentum: float = _f(0.0, "the server's momentum", "server")
    averaging: float = _f(0.0, "share of the last rounds whose models are averaged; 0 keeps the last", "server")
    baseline: bool = _f(False, "afterwards, train the same without privacy for comparison", "run")
    device: str = _f("auto", "auto, cpu or cuda", "run")
    memory_gb: float = _f(2.0, "memory for client weights at once", "run")
    evaluate_every: int = _f(1, "rounds between two evaluations on the test data", "run")
    checkpoint_seconds: float = _f(5.0, "least time between two checkpoints", "run")
    name: str | None = _f(None, "name of the run folder (default: made from the time)", "run")
    out: str = _f("runs", "folder in which run folders are made", "run")
    ledger: str | None = _f(
        None, "file in which all jobs on these data are charged (default: ledger.sqlite in out)", "run"
    )
    options: tuple[tuple[str, Any], ...] = ()  # the method's own fields

    def __post_init__(self) -> None:
        for f in fields():
            _typed(f.name, getattr(self, f.name), typing.get_type_hints(Spec)[f.name])
        check.positive(
            epsilon=self.epsilon,
            learning_rate=0.1 if self.learning_rate is None else self.learning_rate,
            server_lr=self.server_lr,
            memory_gb=self.memory_gb,
        )
        check.non_negative(checkpoint_seconds=self.checkpoint_seconds)
        check.below_one(delta=self.delta)
        check.probability(client_rate=self.client_rate)
        check.fraction(momentum=self.momentum, server_momentum=self.server_momentum, averaging=self.averaging)
        check.count(clients=self.clients, rounds=self.rounds, evaluate_every=self.evaluate_every)
        for name in ("max_participations", "local_steps", "batch_size"):
            if getattr(self, name) is not None:
                check.count(**{name: getattr(self, name)})
        if self.batch_rate is not None:
            check.probability(batch_rate=self.batch_rate)
        if self.local_epochs is not None:
            check.positive(local_epochs=self.local_epochs)
        check.one_of(("research", "secure"), mode=self.mode)
        check.one_of(("poisson", "fixed"), client_sampling=self.client_sampling)
        check.one_of(("sgd", "momentum", "adam", "rmsprop"), optimizer=self.optimizer)
        check.one_of(("auto", "cpu", "cuda"), device=self.device)
        check.one_of(("scattering", "none"), features=self.features)
        if self.viewer is not None:
            trust.viewer(self.viewer)
        self._check_pairs()
        self.method_object()

    def _check_pairs(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            raise SpecError("give local_steps or local_epochs, not both.")
        if self.batch_size is not None and self.batch_rate is not None:
            raise SpecError("give batch_size or batch_rate, not both.")
        if self.mode == "secure" and self.seed is not None:
            raise SpecError("a secure run accepts no seed: whoever knows it can subtract the noise. Drop seed.")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise SpecError(f"seed must lie between 0 and 2^63 - 1, not {self.seed}.")
        if self.name is not None and not NAME.match(self.name):
            raise SpecError(
                f"name must be 1 to 64 letters, digits, '.', '_' or '-' and start with a letter or digit, "
                f"not {self.name!r}."
            )

    def method_object(self) -> Any:
        return plugin.load("methods", self.method)(**dict(self.options))

    def to_dict(self) -> dict[str, Any]:
        """What a file would hold: no empty values, the method's fields among the others."""
        own = {f.name: getattr(self, f.name) for f in fields()}
        return {k: v for k, v in own.items() if v is not None} | dict(self.options)


def fields() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(Spec) if f.name != "options"]


def method_fields(method: str) -> list[dataclasses.Field[Any]]:
    return list(dataclasses.fields(plugin.load("methods", method)))


def method_help(method: str) -> dict[str, str]:
    """What each field of a method is: the comment behind it in its source."""
    found: dict[str, str] = {}
    for cls in reversed(plugin.load("methods", method).__mro__[:-1]):
        found |= dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(cls), flags=re.MULTILINE))
    return found


def from_dict(values: dict[str, Any]) -> Spec:
    """Checked by name and by type; an unknown key names the nearest known one."""
    known = {f.name for f in fields()}
    method = values.get("method", Spec.method)
    own = {f.name: f for f in method_fields(method)}
    hints = typing.get_type_hints(plugin.load("methods", method))
    plain, options = {}, {}
    for key, value in values.items():
        if key in known:
            plain[key] = value
        elif key in own:
            options[key] = _typed(key, value, hints[key])
        else:
            raise SpecError(_unknown(key, method, known | own.keys()))
    return Spec(**plain, options=tuple(sorted(options.items())))


def _unknown(key: str, method: str, known: set[str]) -> str:
    for other in plugin.available("methods"):
        if key in {f.name for f in method_fields(other)}:
            return f"unknown key {key!r}: it belongs to {other}, not to {method}."
    near = get_close_matches(key, known, n=1)
    return f"unknown key {key!r}." + (f" Did you mean {near[0]!r}?" if near else " `sordino init` lists them all.")


def read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {path}: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from error


def _typed(name: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the field's type; whole numbers pass for numbers, booleans do not."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in allowed:
        return None
    for kind in allowed:
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if kind is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if kind in (str, bool) and isinstance(value, kind):
            return value
    wanted = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    raise SpecError(f"{name} must be {wanted[allowed[0]]}, not {value!r}.")


def parse(name: str, text: str, hint: Any) -> Any:
    """A flag's text -> a value of the field's type."""
    kind = next(k for k in (typing.get_args(hint) or (hint,)) if k is not type(None))
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError) as error:
        wanted = {float: "a number", int: "a whole number", bool: "true or false"}[kind]
        raise SpecError(f"{name} must be {wanted}, not {text!r}.") from error


def template() -> str:
    """A commented TOML file with every key at its default."""
    lines = ["# A Sordino run. Every key is optional; these are the defaults.", ""]
    group = None
    for f in fields():
        if f.metadata["group"] != group:
            group = f.metadata["group"]
            lines += ["", f"# --- {group}"]
        lines.append(_line(f.name, f.default, f.metadata["help"]))
    for method in plugin.available("methods"):
        own = method_fields(method)
        if own:
            lines += ["", f"# --- of {method} only"]
            text = method_help(method)
            lines += [_line(f.name, f.default, text.get(f.name, ""), commented=method != Spec.method) for f in own]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, text: str, commented: bool = False) -> str:
    hint = str(typing.get_type_hints(Spec).get(name, ""))
    example = 10 if "int" in hint else 0.5 if "float" in hint else "..."
    shown = to_toml(example if value is None else value)
    start = "# " if value is None or commented else ""
    return f"{start}{name} = {shown}" + (f"  # {text}" if text else "")


def to_toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
    return repr(value)
