"""Names that other tools use for keys, with our key, or with the reason why there is none."""

from __future__ import annotations

_NOISE = (
    "noise follows from epsilon, delta and the number of rounds: set epsilon, and the run says how much noise it adds"
)
_SENSITIVITY = "the sensitivity follows from the clip that the code enforces: set clip"
_METRIC = "figures follow from the labels: evaluate_on chooses the records, evaluate_every how often"

KEYS = {  # name elsewhere -> our key
    "lr": "learning_rate",
    "eta": "learning_rate",
    "step_size": "learning_rate",
    "client_lr": "learning_rate",
    "local_lr": "learning_rate",
    "server_learning_rate": "server_lr",
    "global_lr": "server_lr",
    "eps": "epsilon",
    "target_epsilon": "epsilon",
    "budget": "epsilon",
    "privacy_budget": "epsilon",
    "target_delta": "delta",
    "max_grad_norm": "clip",
    "l2_norm_clip": "clip",
    "clip_norm": "clip",
    "clipping": "clip",
    "clipping_norm": "clip",
    "batch": "batch_size",
    "bs": "batch_size",
    "batchsize": "batch_size",
    "sample_rate": "batch_rate",
    "sampling_rate": "batch_rate",
    "fraction_fit": "client_rate",
    "client_fraction": "client_rate",
    "participation": "client_rate",
    "local_iterations": "local_steps",
    "optim": "optimizer",
    "opt": "optimizer",
    "optimiser": "optimizer",
    "n_clients": "clients",
    "num_clients": "clients",
    "n_rounds": "rounds",
    "num_rounds": "rounds",
    "iterations": "rounds",
    "steps": "local_steps",
    "data": "dataset",
    "csv": "dataset",
    "file": "dataset",
    "path": "dataset",
    "label": "label_column",
    "target": "label_column",
    "y": "label_column",
    "test_data": "test",
    "test_file": "test",
    "granularity": "unit",
    "level": "unit",
    "privacy_unit": "unit",
    "adversary": "viewer",
    "secure_aggregation": "channel",
    "secagg": "channel",
    "shuffle": "channel",
    "random_state": "seed",
    "random_seed": "seed",
    "net": "model",
    "network": "model",
    "arch": "model",
    "strategy": "algorithm",
    "aggregator": "algorithm",
    "scheduler": "schedule",
    "lr_schedule": "schedule",
    "output": "out",
    "output_dir": "out",
    "normalize": "standardise",
    "standardize": "standardise",
    "gpu": "device",
    "cuda": "device",
}

REASONS = {  # name elsewhere -> why there is no such key
    "sigma": _NOISE,
    "noise": _NOISE,
    "noise_multiplier": _NOISE,
    "noise_scale": _NOISE,
    "std": _NOISE,
    "z": _NOISE,
    "sensitivity": _SENSITIVITY,
    "metric": _METRIC,
    "metrics": _METRIC,
    "epochs": "set rounds for the whole run, and local_epochs for the passes of a client over its data in a round",
    "epoch": "set rounds for the whole run, and local_epochs for the passes of a client over its data in a round",
    "dp": "every method but none is private: choose one with method (`sordino methods`)",
    "privacy": "every method but none is private: choose one with method (`sordino methods`)",
    "private": "every method but none is private: choose one with method (`sordino methods`)",
    "secure": "the default on your own data is mode = secure; a seed makes it research",
    "accountant": "the tightest of all accountants is used: `sordino epsilon --explain` shows them",
    "patience": "stopping by exact figures on private records would leak them: set rounds",
    "early_stopping": "stopping by exact figures on private records would leak them: set rounds",
    "shuffle_data": "batches are drawn as the accounting assumes: see batch_sampling",
    "num_workers": "nothing is loaded in the background: federation = workers, with workers, runs clients in processes",
    "verbose": "--json prints one object for programs; otherwise a run says what it does",
}


def hint(name: str) -> str:
    """Return the key that is meant by a name of other tools, or the reason why there is none; "" if it is unknown."""
    plain = name.lower().replace("-", "_")
    if plain in KEYS:
        return f"use {KEYS[plain]}"
    return REASONS.get(plain, "")
