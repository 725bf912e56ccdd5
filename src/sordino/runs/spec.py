"""TOML, flags or keywords -> one frozen Spec; the only reader of configuration.

One schema: a field below is a TOML key, a command-line flag (dashes for underscores) and a keyword of
`sordino.train`. The fields of the method and of the algorithm join it, so `--clip 0.5` works wherever there is a clip.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from sordino.contract.presence import Stragglers
from sordino.core import check, plugin
from sordino.core.errors import SpecError
from sordino.privacy import trust
from sordino.runs.values import typed

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

NAMED = (  # what a Python caller brings instead
    "dataset", "data_dir", "label_column", "client_column", "user_column", "split_column", "schema", "test",
    "public_share", "public_data", "partition", "clients", "features", "model", "baseline", "private_data",
    "without_private",
)  # fmt: skip
PLUGINS = ("methods", "algorithms")  # kinds whose fields are keys too
FEATURES = ("scattering", "silhouettes", "oriented-gradients", "colour-scattering")  # fixed; data/*.py
LEAST_DELTA = 1e-300  # of which accounting can still take a part and a logarithm
AVERAGES = {"none": None, "tail": 0.5, "ema": 0.99, "polynomial": 8.0}  # and their usual parameter


def _f(default: Any, help: str, group: str) -> Any:
    return field(default=default, metadata={"help": help, "group": group})


@lru_cache(maxsize=256)
def types_of(of: type) -> dict[str, Any]:
    """Return the types of a class's fields, which take long to look up; nobody may write into them."""
    return typing.get_type_hints(of)


@dataclass(frozen=True)
class Spec:
    method: str = _f("dp-sgd", "who clips and adds noise, and where: see `sordino methods`", "method")
    algorithm: str = _f("fedavg", "how clients and server turn gradients into a model: see `sordino methods`", "method")
    epsilon: float = _f(2.0, "total privacy budget of the whole run", "privacy")
    delta: float = _f(1e-5, "total delta of the whole run", "privacy")
    unit: str | None = _f(None, "whose data are protected: record, client or user (default: the method's)", "privacy")
    viewer: str | None = _f(
        None,
        "whom it is protected against: server, public, client, server+N colluding clients (default: the method's)",
        "privacy",
    )
    max_participations: int | None = _f(None, "largest number of rounds in which one client may take part", "privacy")
    records_per_user: int | None = _f(None, "with unit = user: largest number of records used per user", "privacy")
    clients_per_user: int = _f(
        1, "with unit = user: largest number of clients that may hold one user's records", "privacy"
    )
    budgets: str | None = _f(
        None, "personal budgets: a CSV file (client, epsilon, delta), or epsilon:share pairs: 0.5:0.4,2:0.6", "privacy"
    )
    mode: str | None = _f(
        None,
        "research (seeded, repeatable) or secure (keyed by the operating system); default: secure on your own data, "
        "research on a shipped benchmark",
        "privacy",
    )
    seed: int | None = _f(
        None,
        "seed of a research run (default 0); giving one selects research mode, and a secure run accepts none",
        "privacy",
    )
    dataset: str = _f(
        "mnist", "a name (`sordino datasets`), or a path: .npz, .csv, .parquet, folder of pictures", "data"
    )
    data_dir: str | None = _f(None, "folder to search first for data (or SORDINO_DATA)", "data")
    data_name: str | None = _f(None, "name of the data in the ledger, given by their owner", "data")
    label_column: str | None = _f(None, "in a table: the column to predict", "data")
    client_column: str | None = _f(None, "in a table: the column that names a record's client", "data")
    user_column: str | None = _f(None, "in a table: the column that names a record's user", "data")
    split_column: str | None = _f(None, "in a table: the column that says train or test", "data")
    schema: str | None = _f(None, "for a table: a TOML file that declares the bounds and categories of columns", "data")
    test: str | None = _f(None, "for your own data: a second file or folder like it, whose records are public", "data")
    public_share: float | None = _f(
        None, "for your own data: declares this share of the records (or users) public, for testing", "data"
    )
    public_data: bool = _f(False, "your own data are entirely public, like those of a benchmark", "data")
    partition: str | None = _f(
        None,
        "iid, quantity:ALPHA, natural[:CLIENTS] (default where known); public data: dirichlet:ALPHA, shards:LABELS",
        "data",
    )
    clients: int = _f(50, "number of clients among which the training records are distributed", "data")
    features: str | None = _f(
        None,
        "fixed, data-independent features: scattering, silhouettes, oriented-gradients, colour-scattering or none",
        "data",
    )
    standardise: bool = _f(False, "shift and scale features by noisy, charged statistics", "data")
    feature_bound: float = _f(
        10.0, "with standardise: features are limited to between minus and plus this value", "data"
    )
    private_data: str | None = _f(
        None,
        "which records have private attributes: label:3,8, feature:12>0.5 or file:mask.npy (docs/methods.md)",
        "data",
    )
    without_private: int = _f(
        0, "number of clients (the last ones) that hold no record with private attributes", "data"
    )
    validation: float | None = _f(
        None,
        "share of the records (or users) held out for evaluation (default: 0.1 for a file without test data)",
        "data",
    )
    tuning: float = _f(0.0, "share of all training records that is held out of training, for choosing settings", "data")
    server_data: float = _f(0.0, "share of the training records that the server holds and that count as public", "data")
    evaluate_on: str | None = _f(
        None,
        "test (public, free), validation or tuning (noisy, charged) (default: test, if there are test records)",
        "data",
    )
    release_noise: float | None = _f(
        None,
        "noise multiplier of charged evaluations (default: set by the budget) and of statistics (default 20)",
        "data",
    )
    model: str | None = _f(None, "a name: see docs/models.md (default: linear; lstm for text)", "model")
    fix_model: bool = _f(False, "replace layers that cannot be trained privately", "model")
    rounds: int = _f(50, "number of federated rounds", "rounds")
    client_sampling: str = _f("poisson", "poisson, or fixed: cohorts of a fixed size", "rounds")
    client_rate: float = _f(1.0, "share of the clients expected in a round; 1 means all of them", "rounds")
    channel: str = _f(
        "direct",
        "direct (the server sees every message), shuffler (but not who sent it) or secure-sum (only the sum)",
        "rounds",
    )
    dropout: str = _f(
        "0", "probability that a drawn client never answers, or LOW-HIGH: each client has its own", "rounds"
    )
    late: float = _f(0.0, "probability that an answer arrives a round later", "rounds")
    slow: float = _f(0.0, "probability that a client does only part of its local steps", "rounds")
    joining: str = _f(
        "0", "SHARE:ROUNDS, such as 0.3:10: this share of the clients joins after this many rounds", "rounds"
    )
    local_steps: int | None = _f(None, "gradient steps per client and round (default 1)", "local")
    local_epochs: float | None = _f(None, "instead of local_steps: passes of a client over its data per round", "local")
    batch_size: int | None = _f(None, "expected records (or users, with unit = user) per step", "local")
    batch_rate: float | None = _f(
        None, "instead of batch_size: expected share of a client's records per step (default 1)", "local"
    )
    optimizer: str = _f("sgd", "optimizer of the clients: sgd, momentum, adam or rmsprop", "local")
    learning_rate: float | None = _f(
        None, "learning rate of the clients (default 0.1; with scattering features and the linear model 8)", "local"
    )
    momentum: float = _f(0.9, "momentum of the clients' optimizer, if it is momentum, adam or rmsprop", "local")
    weight_decay: float = _f(0.0, "weight decay of the clients", "local")
    schedule: str = _f("constant", "of the learning rate over the rounds: constant, linear, cosine or step", "local")
    warmup: int = _f(0, "number of first rounds over which the learning rate rises", "local")
    augment: str = _f("none", "augmentation of pictures, drawn anew in every step: none, flip or flip-crop", "local")
    views: int = _f(1, "number of augmented views of a record, whose mean gradient is clipped as one", "local")
    precision: str = _f("float32", "float32; bfloat16 is for training without privacy", "local")
    compile: bool = _f(
        False,
        "on a GPU, compile frequent passes: takes a minute at first (deep networks: minutes), and a resumed run may "
        "differ in the last digits",
        "local",
    )
    server_lr: float | None = _f(
        None, "learning rate of the server, on the mean update (default: the algorithm's)", "server"
    )
    averaging: str = _f(
        "none",
        "averaging of the models shown: none, tail:SHARE of the last rounds, ema:DECAY or polynomial:POWER",
        "server",
    )
    baseline: bool = _f(False, "afterwards, train the same model without privacy, for comparison", "run")
    device: str = _f("auto", "auto, cpu or cuda", "run")
    memory_gb: float = _f(2.0, "memory, in GB, for client weights held at the same time", "run")
    federation: str = _f("simulator", "who runs the clients: simulator, or workers: processes that own them", "run")
    workers: int = _f(
        0, "with federation = workers: number of processes, at most one per block (0: one per core)", "run"
    )
    blocks: int | None = _f(
        None,
        "groups of clients computed separately, which affects the last digits (default: 1; workers: 4 or more)",
        "run",
    )
    evaluate_every: int | None = _f(
        None, "rounds between two evaluations (default: 1 on public test data, otherwise only one at the end)", "run"
    )
    checkpoint_seconds: float = _f(5.0, "shortest time between two checkpoints, in seconds", "run")
    record_views: bool = _f(False, "keep what the server and the public see in every round, in the private part", "run")
    name: str | None = _f(None, "name of the run folder (default: derived from the time)", "run")
    out: str = _f("runs", "folder in which run folders are created", "run")
    ledger: str | None = _f(
        None, "file to which all jobs are charged (default: the user's registry, see `sordino ledger`)", "run"
    )
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
        for name in (*counts, "evaluate_every", "blocks"):
            if getattr(self, name) is not None:
                check.count(**{name: getattr(self, name)})
        if self.public_share is not None:
            check.below_one(public_share=self.public_share)
        if self.batch_rate is not None:
            check.probability(batch_rate=self.batch_rate)
        check.one_of(("research", "secure", None), mode=self.mode)
        check.one_of(("poisson", "fixed"), client_sampling=self.client_sampling)
        check.one_of(("sgd", "momentum", "adam", "rmsprop"), optimizer=self.optimizer)
        check.one_of(("auto", "cpu", "cuda"), device=self.device)
        check.one_of(("simulator", "workers"), federation=self.federation)
        check.one_of((*FEATURES, "none", None), features=self.features)
        check.one_of(("test", "validation", "tuning", None), evaluate_on=self.evaluate_on)
        check.one_of(("float32", "bfloat16"), precision=self.precision)
        if self.viewer is not None:
            trust.viewer(self.viewer)
        self._check_pairs()
        self.average(), self.stragglers(), self.method_object(), self.algorithm_object(), self.channel_object()

    def _check_pairs(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            raise SpecError("give local_steps or local_epochs, not both.")
        if self.batch_size is not None and self.batch_rate is not None:
            raise SpecError("give batch_size or batch_rate, not both.")
        if self.workers and self.federation != "workers":
            raise SpecError("workers is the number of processes for federation = workers: set federation too.")
        if self.federation == "workers" and self.device == "cuda":
            raise SpecError("federation = workers computes on CPUs: use device = cpu, or federation = simulator.")
        share = {"tuning": self.tuning, "validation": self.validation}.get(self.evaluate_on or "", 1.0)
        if share == 0:
            raise SpecError(
                f"evaluate_on = {self.evaluate_on} needs {self.evaluate_on}: the share of records held out."
            )
        if self.test is not None and self.public_share is not None:
            raise SpecError("test names the public records already: give test or public_share, not both.")
        if self.without_private and self.private_data is None:
            raise SpecError("without_private needs private_data: the records that those clients do not hold.")
        if self.stragglers().joining[0] and (self.standardise or self.evaluate_on == "validation"):
            raise SpecError(
                "with joining, some clients come later: evaluate_on = validation and standardise need them all."
            )
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
        own = {f.name for f in plugin_fields(kind, name)}
        return plugin.load(kind, name)(**{k: v for k, v in self.options if k in own})

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

    def average(self) -> tuple[str, float]:
        """How the models of the rounds are averaged, and its parameter."""
        kind, colon, text = self.averaging.partition(":")
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
        """What a file would hold: no empty values, the method's fields among the others."""
        own = {f.name: getattr(self, f.name) for f in fields()}
        return {k: v for k, v in own.items() if v is not None} | dict(self.options)


def fields() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(Spec) if f.name != "options"]


def plugin_fields(kind: str, name: str) -> list[dataclasses.Field[Any]]:
    """The configuration keys of a method or an algorithm."""
    return list(dataclasses.fields(plugin.load(kind, name)))


def plugin_help(kind: str, name: str) -> dict[str, str]:
    """Return the help text of every option of a plug-in."""
    return plugin.field_help(plugin.load(kind, name))


def owners(key: str) -> list[str]:
    """The methods and algorithms that have a key of their own by that name."""
    return [n for k in PLUGINS for n in plugin.loadable(k) if key in {f.name for f in plugin_fields(k, n)}]


def by_name(values: dict[str, Any]) -> dict[str, Any]:
    """Return keys in which a method or an algorithm that was given as an object stands by its name and its options."""
    out = dict(values)
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
    """Checked by name and by type; an unknown key names the nearest known one."""
    known = {f.name for f in fields()}
    if "algorithm" not in values:
        values = values | {"algorithm": plugin.load("methods", values.get("method", Spec.method)).algorithm}
    chosen = [("methods", values.get("method", Spec.method)), ("algorithms", values.get("algorithm", Spec.algorithm))]
    own: dict[str, Any] = {}
    for kind, name in chosen:
        hints = types_of(plugin.load(kind, name))
        own |= {f.name: hints[f.name] for f in plugin_fields(kind, name)}
    plain, options = {}, {}
    for key, value in values.items():
        if key in known:
            plain[key] = value
        elif key in own:
            options[key] = typed(key, value, own[key])
        else:
            raise SpecError(_unknown(key, [name for _, name in chosen], known | own.keys()))
    return Spec(**plain, options=tuple(sorted(options.items())))


def completed(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys from a file as JSON has them, with the defaults of those that came later; as they are where one is gone."""
    try:
        return dict(json.loads(json.dumps(from_dict(keys).to_dict())))
    except (SpecError, TypeError):
        return keys


def _unknown(key: str, chosen: list[str], known: set[str]) -> str:
    if others := owners(key):
        return f"unknown key {key!r}: it belongs to {others[0]}, not to {' or '.join(chosen)}."
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


plugin.reserve(f.name for f in fields())
