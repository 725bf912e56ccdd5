"""The list of small seeded runs that are recorded: as data, each a fraction of a second."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

USUAL = {"mode": "research", "seed": 1, "rounds": 3, "epsilon": 4.0, "learning_rate": 0.2, "device": "cpu"}


@dataclass(frozen=True)
class Run:
    """One run: the keys of `sordino.train` beside the usual ones, the federation and the model."""

    keys: dict[str, Any] = field(default_factory=dict)
    clients: str = "even"
    model: str = "mlp"
    users: bool = False  # whether records belong to users; in the paired federation each lies in two clients
    groups: int = 0  # of private attributes
    test: bool = False  # whether there are public records to evaluate on
    interrupted: int = 0  # rounds after which the run dies, to be resumed
    checkpoint_seconds: float = 0.0


def _run(method: str, clients: str = "even", model: str = "mlp", **keys: Any) -> Run:
    """Return a run of a method; what `Run` knows by name is taken out of the keys."""
    known = {k: keys.pop(k) for k in ("users", "groups", "test") if k in keys}
    if method.startswith("fedsdp"):
        known.setdefault("groups", 1)
    if known.get("groups", 1) > 1:
        keys["groups"] = known["groups"]
    return Run({"method": method, **keys}, clients, model, **known)


BUDGETS = {"budgets": "1:0.5,4:0.5"}
USER = {"unit": "user", "users": True}
SAMPLED = {"client_rate": 0.5}
DROPOUT = {"dropout": "0.3", "rounds": 4}
LATE = {"dropout": "0.1-0.4", "late": 0.3, "rounds": 5}
TWO = {"local_steps": 2}
SPARSE = {"data": "sparse", "prior": 0.95}
MIXED = {"data": "dense:0.5,sparse:0.5", "resources": "standard:0.5,limited:0.5", "prior": 0.95}
SERVER_DATA = {"server_data": 0.25, "path_steps": 2}

RUNS: dict[str, Run] = {
    # no privacy: every algorithm, optimiser, average and straggler as they are
    "none": _run("none", test=True),
    "none-uneven-epochs": _run("none", "uneven", local_epochs=2.0, batch_size=4),
    "none-user": _run("none", "uneven", batch_rate=0.5, **USER),
    "none-secure-sum": _run("none", "uneven", channel="secure-sum", optimizer="momentum", **TWO),
    "none-rmsprop": _run("none", optimizer="rmsprop", learning_rate=0.02, schedule="cosine", warmup=1, **TWO),
    "none-fedsgd": _run("none", "uneven", algorithm="fedsgd"),
    "none-fedopt-yogi": _run("none", algorithm="fedopt", server_optimizer="yogi", **TWO),
    "none-fednova": _run("none", "uneven", algorithm="fednova", local_epochs=1.0, batch_size=4),
    "none-q-fedavg": _run("none", "uneven", algorithm="q-fedavg", **TWO),
    "none-scaffold-dropout": _run("none", "uneven", algorithm="scaffold", **TWO, **DROPOUT),
    "none-fedavgm-late": _run("none", "uneven", algorithm="fedavgm", **TWO, **LATE),
    "none-fixed-clients": _run("none", "uneven", client_sampling="fixed", **SAMPLED),
    "none-lazy": _run("none", "lazy", **SAMPLED),
    "none-regression": _run("none", "regression", "regression", loss="squared_error", batch_rate=0.5, **TWO),
    "none-ditto": _run("none", "uneven", algorithm="ditto", test=True, **TWO),
    "none-fedrep": _run("none", algorithm="fedrep", test=True, **TWO),
    # dp-sgd: units, viewers, channels, sampling, optimisers, algorithms
    "dp-sgd": _run("dp-sgd", test=True),
    "dp-sgd-linear-uneven": _run("dp-sgd", "uneven", "linear"),
    "dp-sgd-poisson": _run("dp-sgd", "uneven", batch_rate=0.5, **SAMPLED),
    "dp-sgd-batch-size": _run("dp-sgd", "uneven", batch_size=4, **TWO),
    "dp-sgd-epochs": _run("dp-sgd", batch_size=4, local_epochs=1.0),
    "dp-sgd-lazy": _run("dp-sgd", "lazy", **SAMPLED),
    "dp-sgd-regression": _run("dp-sgd", "regression", "regression", loss="squared_error"),
    "dp-sgd-little-memory": _run("dp-sgd", "uneven", memory_gb=1e-6, **TWO),
    "dp-sgd-pictures-user": _run("dp-sgd", "pictures", "cnn", batch_rate=0.5, **USER),
    "dp-sgd-colluders": _run("dp-sgd", viewer="server+2", **SAMPLED),
    "dp-sgd-fixed-clients": _run("dp-sgd", client_sampling="fixed", **SAMPLED),
    "dp-sgd-fixed-batches": _run("dp-sgd", batch_sampling="fixed", batch_size=4),
    "dp-sgd-user": _run("dp-sgd", "uneven", **USER),
    "dp-sgd-user-two-clients": _run("dp-sgd", "paired", clients_per_user=2, records_per_user=3, **USER),
    "dp-sgd-views": _run("dp-sgd", "pictures", "cnn", augment="flip-crop", views=2),
    "dp-sgd-adam-steps": _run("dp-sgd", optimizer="adam", learning_rate=0.02, local_steps=3),
    "dp-sgd-momentum-decay": _run("dp-sgd", optimizer="momentum", weight_decay=0.01, schedule="linear", **TWO),
    "dp-sgd-secure-sum": _run("dp-sgd", "uneven", channel="secure-sum"),
    "dp-sgd-secure-sum-colluders": _run("dp-sgd", channel="secure-sum", viewer="server+2"),
    "dp-sgd-secure-sum-user": _run("dp-sgd", "uneven", channel="secure-sum", **USER),
    "dp-sgd-secure-sum-batches": _run("dp-sgd", channel="secure-sum", batch_rate=0.5),
    "dp-sgd-secure-sum-fedopt": _run("dp-sgd", channel="secure-sum", algorithm="fedopt", viewer="public"),
    "dp-sgd-viewer-client": _run("dp-sgd", viewer="client", **SAMPLED),
    "dp-sgd-viewer-public": _run("dp-sgd", viewer="public", **SAMPLED),
    "dp-sgd-budgets": _run("dp-sgd", rounds=5, **BUDGETS),
    "dp-sgd-participations": _run("dp-sgd", max_participations=2, rounds=5, **SAMPLED),
    "dp-sgd-late-slow-joining": _run("dp-sgd", "uneven", slow=0.5, joining="0.3:2", **TWO, **LATE),
    "dp-sgd-standardise": _run("dp-sgd", standardise=True),
    "dp-sgd-standardise-user": _run("dp-sgd", "uneven", standardise=True, feature_bound=5.0, **USER),
    "dp-sgd-validation": _run("dp-sgd", validation=0.2, evaluate_on="validation", evaluate_every=1),
    "dp-sgd-tuning": _run("dp-sgd", tuning=0.2, evaluate_on="tuning", release_noise=8.0),
    "dp-sgd-tail": _run("dp-sgd", averaging="tail:0.5", rounds=5, test=True),
    "dp-sgd-ema": _run("dp-sgd", averaging="ema:0.8", rounds=5),
    "dp-sgd-polynomial": _run("dp-sgd", averaging="polynomial:4", rounds=5),
    "dp-sgd-fedavgm": _run("dp-sgd", algorithm="fedavgm", server_momentum=0.5, server_lr=0.7),
    "dp-sgd-fedopt": _run("dp-sgd", algorithm="fedopt"),
    "dp-sgd-fedsgd": _run("dp-sgd", "uneven", algorithm="fedsgd"),
    "dp-sgd-fednova": _run("dp-sgd", "uneven", algorithm="fednova", optimizer="momentum", local_epochs=1.0,
                           batch_rate=0.5),
    "dp-sgd-q-fedavg": _run("dp-sgd", "uneven", algorithm="q-fedavg", q=0.5, **TWO),
    "dp-sgd-ditto": _run("dp-sgd", "uneven", algorithm="ditto", test=True),
    "dp-sgd-fedrep": _run("dp-sgd", algorithm="fedrep", test=True, local_steps=3),
    "dp-sgd-scaffold": _run("dp-sgd", "uneven", algorithm="scaffold", **TWO),
    # other methods with noise inside the clients
    "adaptive-noise-record": _run("adaptive-noise", "uneven", warm=1, rounds=5),
    "adaptive-noise-client": _run("adaptive-noise-client", warm=1, rounds=5, clip=0.5),
    "adaptive-noise-secure-sum": _run("adaptive-noise", channel="secure-sum", warm=1, rounds=4),
    "adaptive-noise-sampled": _run("adaptive-noise", warm=1, rounds=4, algorithm="fedprox", mu=0.1, **SAMPLED, **TWO),
    "geodp": _run("geodp", "uneven", noise_ratio=0.8),
    "geodp-user": _run("geodp", "uneven", **USER),
    "adap-dp-fl": _run("adap-dp-fl", rounds=5, patience=1, noise_step=0.9),
    "dp-dyns-exponential": _run("dp-dyns", decay_shape="exponential", clip_decay=0.5, rounds=4),
    "dp-dyns-cyclic-secure-sum": _run("dp-dyns", decay_shape="cyclic", channel="secure-sum", rounds=4),
    "fed-cdp": _run("fed-cdp", "uneven"),
    "fed-cdp-secure-sum": _run("fed-cdp", channel="secure-sum"),
    "fed-alpha-cdp-staircase": _run("fed-alpha-cdp", decay_shape="staircase", rounds=4),
    "dp-scaffold": _run("dp-scaffold", "uneven", rounds=4, **SAMPLED, **TWO),
    "dp-scaffold-dropout": _run("dp-scaffold", **TWO, **DROPOUT),
    "dp-scaffold-user": _run("dp-scaffold", "uneven", **USER, **TWO),
    "dp-fedprox": _run("dp-fedprox", "uneven", mu=0.5, **TWO),
    "pfa": _run("pfa", **BUDGETS),
    "pfa-plain": _run("pfa", "uneven", dims=0, **BUDGETS),
    "pfa-budget-weights": _run("pfa", weighting="budget", dims=2, algorithm="fedavgm", **BUDGETS),
    "fedsdp": _run("fedsdp", "uneven", refresh=2, rounds=5),
    "fedsdp-two-groups": _run("fedsdp", groups=2, refresh=2, slope=1.5, rounds=4),
    "fedsdp-budgets": _run("fedsdp", refresh=2, rounds=4, **BUDGETS),
    "fedsdp-dropout": _run("fedsdp", refresh=2, **DROPOUT),
    "fedsdp-sampled": _run("fedsdp", refresh=2, rounds=4, algorithm="fedopt", **SAMPLED, **TWO),
    "udp-fl-gaussian": _run("udp-fl", "uneven", mechanism="gaussian"),
    "udp-fl-l2-laplace": _run("udp-fl", mechanism="l2-laplace"),
    "udp-fl-laplace-pure": _run("udp-fl", mechanism="laplace", pure=True),
    "udp-fl-staircase": _run("udp-fl", model="linear", mechanism="staircase"),
    "udp-fl-auto": _run("udp-fl", profile="medical"),
    "udp-fl-auto-pure": _run("udp-fl", model="linear", pure=True, profile="iot"),
    "udp-fl-reselect": _run("udp-fl", reselect=2, rounds=5),
    "udp-fl-reselect-switch": _run("udp-fl", "uneven", reselect=1, clip=0.3, epsilon=500.0, **SPARSE),
    "udp-fl-auto-sparse": _run("udp-fl", "uneven", **SPARSE),
    "udp-fl-kinds-mixed": _run("udp-fl", reselect=1, managed=True, rounds=4, **MIXED),
    "udp-fl-kinds": _run("udp-fl", profile="medical:0.5,iot:0.5", resources="limited:0.25,high:0.75"),
    "udp-fl-managed": _run("udp-fl", managed=True, rounds=5, **SAMPLED),
    "udp-fl-managed-budgets": _run("udp-fl", managed=True, reselect=2, rounds=4, **BUDGETS),
    "udp-fl-budgets-penalty": _run("udp-fl", "uneven", mechanism="gaussian", penalty=True, **BUDGETS, **TWO),
    "udp-fl-path-bezier": _run("udp-fl", mechanism="gaussian", path="bezier", **SERVER_DATA, **BUDGETS),
    "udp-fl-path-polygon-scaffold": _run("udp-fl", path="polygon", algorithm="scaffold", **SERVER_DATA, **TWO),
    "udp-fl-user": _run("udp-fl", "paired", mechanism="gaussian", clients_per_user=2, **USER),
    "udp-fl-late": _run("udp-fl", "uneven", mechanism="l2-laplace", **LATE),
    "udp-fl-path-tuned": _run("udp-fl", path="tuned", **SERVER_DATA, **BUDGETS),
    "udp-fl-batches": _run("udp-fl", mechanism="gaussian", batch_rate=0.5),
    # methods with noise on whole updates
    "dp-fedavg": _run("dp-fedavg", "uneven", test=True),
    "dp-fedavg-adaptive-late": _run("dp-fedavg", adaptive_clip=True, algorithm="fedavgm", averaging="tail:0.5", **LATE),
    "dp-fedavg-weight-cap": _run("dp-fedavg", "uneven", weight_cap=10.0, **TWO),
    "dp-fedavg-sampled": _run("dp-fedavg", rounds=4, **SAMPLED),
    "dp-fedavg-fixed-clients": _run("dp-fedavg", client_sampling="fixed", **SAMPLED),
    "dp-fedavg-participations": _run("dp-fedavg", max_participations=2, rounds=5, **SAMPLED),
    "dp-fedavg-budgets": _run("dp-fedavg", rounds=5, **BUDGETS),
    "dp-fedavg-lazy": _run("dp-fedavg", "lazy", adaptive_clip=True, **SAMPLED),
    "dp-fedavg-ditto": _run("dp-fedavg", "uneven", algorithm="ditto", test=True, **TWO),
    "dp-fedavg-fedrep": _run("dp-fedavg", algorithm="fedrep", test=True, **TWO),
    "dp-fedavg-fednova": _run("dp-fedavg", "uneven", algorithm="fednova", local_epochs=1.0, batch_rate=0.5),
    "dp-fedavg-standardise": _run("dp-fedavg", "uneven", standardise=True),
    "dp-fedavg-user": _run("dp-fedavg", "paired", clients_per_user=2, **USER),
    "dp-fedavg-scaffold": _run("dp-fedavg", "uneven", algorithm="scaffold", rounds=4, **TWO),
    "dp-fedavg-q-fedavg": _run("dp-fedavg", algorithm="q-fedavg"),
    "dp-fedavg-joining": _run("dp-fedavg", joining="0.5:2", slow=0.4, rounds=4, **TWO),
    "dp-fedavg-validation": _run("dp-fedavg", validation=0.2, evaluate_on="validation"),
    "dp-fedsam": _run("dp-fedsam", "uneven", radius=0.1, **TWO),
    "dp-fedsam-user": _run("dp-fedsam", "uneven", radius=0.1, batch_rate=0.5, **USER),
    "dp-ftrl-tree": _run("dp-ftrl", rounds=5, averaging="ema"),
    "dp-ftrl-tree-separation": _run("dp-ftrl", separation=2, rounds=5),
    "dp-ftrl-banded": _run("dp-ftrl", mechanism="banded", bands=2, rounds=5),
    "dp-ftrl-banded-separation": _run("dp-ftrl", mechanism="banded", bands=2, separation=3, rounds=5),
    "nbafl": _run("nbafl", "uneven", **TWO),
    "nbafl-downlink": _run("nbafl", downlink=0.5),
    "nbafl-late": _run("nbafl", "uneven", **LATE),
    "nbafl-budgets": _run("nbafl", rounds=5, **BUDGETS),
    "nbafl-sampled-public": _run("nbafl", viewer="public", **SAMPLED),
    "nbafl-secure-sum-missing": _run("nbafl", channel="secure-sum", allowed_dropouts=2, **DROPOUT),
    "distributed": _run("distributed", "uneven", **TWO),
    "distributed-missing": _run("distributed", allowed_dropouts=2, viewer="server+1", **DROPOUT),
    "distributed-sampled": _run("distributed", mechanism="discrete-gaussian", min_cohort=3, **SAMPLED),
    "distributed-poisson-binomial": _run("distributed", mechanism="poisson-binomial", bits=12),
    # methods as printed
    "adaptive-noise-paper": _run("adaptive-noise-paper", "uneven"),
    "adaptive-noise-paper-literal": _run("adaptive-noise-paper", reading="literal", scope="round"),
    "nbafl-paper": _run("nbafl-paper", "uneven", clip=5.0),
    "nbafl-paper-k-of-n": _run("nbafl-paper", scheduling="k-of-n", clip_by="coordinate", clip=1.0, **SAMPLED),
    "geodp-paper": _run("geodp-paper", clip=5.0),
    "geodp-paper-linear": _run("geodp-paper", reading="linear", clip=5.0),
    "adap-dp-fl-paper": _run("adap-dp-fl-paper", "uneven", rounds=5, patience=1),
    "adap-dp-fl-paper-noisy": _run("adap-dp-fl-paper", reading="noisy", rounds=4, patience=1),
    "dp-dyns-paper": _run("dp-dyns-paper", rounds=4),
    "fed-cdp-paper": _run("fed-cdp-paper", "uneven"),
    "fed-alpha-cdp-paper": _run("fed-alpha-cdp-paper", reading="sum"),
    "private-dl-paper": _run("private-dl-paper", "uneven"),
    "fedsdp-paper": _run("fedsdp-paper", "uneven", clip=5.0),
    "fedsdp-paper-two-groups": _run("fedsdp-paper", groups=2, clip=1.0, clip_by="coordinate", permutations=4),
    "udp-fl-paper-gaussian": _run("udp-fl-paper", mechanism="gaussian", **BUDGETS),
    "udp-fl-paper-laplace": _run("udp-fl-paper", "uneven", mechanism="laplace"),
    "udp-fl-paper-staircase": _run("udp-fl-paper", mechanism="staircase"),
    "udp-fl-paper-code": _run("udp-fl-paper", mechanism="laplace", reading="code"),
    "udp-fl-paper-auto": _run("udp-fl-paper", "uneven", mechanism="auto", reselect=2, **BUDGETS),
    "udp-fl-paper-path": _run("udp-fl-paper", mechanism="gaussian", path="bezier", **SERVER_DATA),
}  # fmt: skip
RESUMED = (
    "none-scaffold-dropout", "dp-fedavg-adaptive-late", "dp-ftrl-tree", "dp-ftrl-banded", "dp-scaffold-dropout",
    "fedsdp", "udp-fl-managed", "udp-fl-managed-budgets", "nbafl-late", "adap-dp-fl", "dp-sgd-standardise",
    "dp-fedavg-ditto",
)  # fmt: skip
RUNS |= {f"{name}-resumed": replace(RUNS[name], interrupted=2) for name in RESUMED}
REPLAYED = ("dp-fedavg-adaptive-late", "dp-scaffold-dropout", "udp-fl-managed", "fedsdp")  # from the beginning
RUNS |= {f"{name}-replayed": replace(RUNS[name], interrupted=2, checkpoint_seconds=1e6) for name in REPLAYED}
