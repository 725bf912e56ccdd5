"""The keys of a run, by group: each is a TOML key, a command-line flag and a keyword of `sordino.train`.

The comment behind a key, with the comment lines below it, is its help text (`plugin.field_help`); its class, its group.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodKeys:
    """Which method and which algorithm train."""

    method: str = "dp-sgd"  # who clips and adds noise, and where: see `sordino methods`
    algorithm: str = "fedavg"  # how clients and server turn gradients into a model: see `sordino methods`


@dataclass(frozen=True)
class PrivacyKeys:
    """What is promised, to whom, and with what randomness."""

    epsilon: float = 2.0  # total privacy budget of the whole run
    delta: float = 1e-5  # total delta of the whole run
    unit: str | None = None  # whose data are protected: record, client or user (default: the method's)
    viewer: str | None = None  # whom it is protected against: server, public, client, server+N colluding clients
    # (default: the method's)
    max_participations: int | None = None  # largest number of rounds in which one client may take part
    records_per_user: int | None = None  # with unit = user: largest number of records used per user
    clients_per_user: int = 1  # with unit = user: largest number of clients that may hold one user's records
    budgets: str | None = None  # personal budgets: epsilon:share pairs (0.5:0.4,2:0.6), one epsilon per client
    # (0.5,2,1), or a CSV file (client, epsilon, delta)
    mode: str | None = None  # research (seeded, repeatable) or secure (keyed by the operating system); default: secure
    # on your own data, research on a shipped benchmark
    seed: int | None = None  # seed of a research run (default 0); giving one selects research mode, and a secure run
    # accepts none


@dataclass(frozen=True)
class DataKeys:
    """Which records there are, who holds them and on which of them the model is evaluated."""

    dataset: str = "mnist"  # a name (`sordino datasets`), or a path: .csv, .tsv, .parquet, .npz, folder of pictures
    data_dir: str | None = None  # folder to search first for data (or SORDINO_DATA)
    data_name: str | None = None  # name of the data in the ledger, given by their owner
    label_column: str | None = None  # in a table: the column to predict
    client_column: str | None = None  # in a table: the column that names a record's client
    user_column: str | None = None  # in a table: the column that names a record's user
    split_column: str | None = None  # in a table: the column that says train or test
    schema: str | None = None  # for a table: a TOML file that declares the bounds and categories of columns
    classes: tuple[str, ...] | None = None  # in a table: the labels, in the order of the class numbers, as a list of
    # text (flag: a,b,c)
    decimal: str = "."  # in a .csv or .tsv file: the decimal mark of numbers, . or ,
    time_column: str | None = None  # for time series: the column by which rows are put in order
    window: int | None = None  # for time series: a record is this many rows of one client and user (docs/data.md)
    horizon: int | None = None  # with window: the label comes this many rows after the window's last row (default 1)
    stride: int | None = None  # with window: rows between the starts of two windows (default: window + horizon)
    time_step: str | None = None  # with window: distance of two rows in time, such as 1h or 1; unit = record needs it
    test: str | None = None  # for your own data: a second file or folder like it, whose records are public
    public_share: float | None = None  # for your own data: declares this share of the records (or users) public, for
    # testing
    public_data: bool = False  # your own data are entirely public, like those of a benchmark
    partition: str | None = None  # iid, quantity:ALPHA, natural[:CLIENTS] (default where known); public data:
    # dirichlet:ALPHA, shards:LABELS
    clients: int = 50  # number of clients among which the training records are distributed
    features: str | None = None  # fixed, data-independent features: scattering, silhouettes, oriented-gradients,
    # colour-scattering, drawn-prior, several of these joined by + (silhouettes+drawn-prior), or none
    standardise: bool = False  # shift and scale features by noisy, charged statistics
    feature_bound: float = 10.0  # with standardise: features are limited to between minus and plus this value
    normalise: str | None = None  # rows (of unit length, centred and scaled by charged statistics), log-rows (the same
    # on a logarithmic scale), centred (not scaled; also for fixed features with the linear model), unit (not
    # centred) or none; default: rows for tables with the linear model or the mlp, log-rows where no bounds of columns
    # are declared, centred for the features drawn-prior with the linear model
    private_data: str | None = None  # which records have private attributes: label:3,8, feature:12>0.5 or
    # file:mask.npy (docs/methods.md)
    without_private: int = 0  # number of clients (the last ones) that hold no record with private attributes
    validation: float | None = None  # share of the records (or users) held out for evaluation (default: 0.1 for a file
    # without test data)
    tuning: float = 0.0  # share of all training records that is held out of training, for choosing settings
    server_data: float = 0.0  # share of the training records that the server holds and that count as public
    evaluate_on: str | None = None  # test (public, free), validation or tuning (noisy, charged) (default: test, if
    # there are test records)
    metric: str | None = None  # what is measured on held-out records: accuracy, brier, balanced_accuracy, confusion or
    # mae (default: accuracy; mae for regression); on public test records: the metric shown first
    release_noise: float | None = None  # noise multiplier of charged evaluations (default: set by the budget) and of
    # statistics (default 20)


@dataclass(frozen=True)
class ModelKeys:
    """The network."""

    model: str | None = None  # a name: see docs/models.md (default: linear; lstm for text)
    fix_model: bool = False  # replace layers that cannot be trained privately
    initial_weights: str | None = None  # path of a .safetensors file with the model's parameters, to start from instead
    # of random ones (docs/models.md)
    initial_weights_from: str | None = None  # what initial_weights were made from: public (public data, or none), or
    # own (training records of this run, which then has no guarantee)


@dataclass(frozen=True)
class RoundKeys:
    """Who takes part in a round, and how answers travel."""

    rounds: int = 50  # number of federated rounds
    client_sampling: str = "poisson"  # poisson, or fixed: cohorts of a fixed size
    client_rate: float = 1.0  # share of the clients expected in a round; 1 means all of them
    channel: str = "direct"  # direct (the server sees every message), shuffler (but not who sent it) or secure-sum
    # (only the sum) (default: direct, or the method's)
    min_cohort: int | None = None  # behind a secure sum or a shuffler: a round in which fewer clients are drawn is not
    # released (default: what the sampling guarantees: all clients, the size of fixed cohorts, or 1)
    allowed_dropouts: int = 0  # behind a secure sum or a shuffler: drawn clients that may fail to answer before a round
    # is not released
    dropout: str = "0"  # probability that a drawn client never answers, or LOW-HIGH: each client has its own
    late: float = 0.0  # probability that an answer arrives a round later
    slow: float = 0.0  # probability that a client does only part of its local steps
    joining: str = "0"  # SHARE:ROUNDS, such as 0.3:10: this share of the clients joins after this many rounds


@dataclass(frozen=True)
class LocalKeys:
    """What a client does in a round."""

    local_steps: int | None = None  # gradient steps per client and round (default 1)
    local_epochs: float | None = None  # instead of local_steps: passes of a client over its data per round
    batch_size: int | None = None  # expected records (or users, with unit = user) per step
    batch_rate: float | None = None  # instead of batch_size: expected share of a client's records per step (default 1)
    class_weights: str | None = None  # public weight of each class in the loss, such as 1,5; a record's loss is
    # multiplied before clipping
    optimizer: str = "sgd"  # optimizer of the clients: sgd, momentum, adam or rmsprop
    learning_rate: float | None = None  # learning rate of the clients (default 0.1; with normalise it follows the
    # noise; with scattering features and the linear model 8)
    momentum: float = 0.9  # momentum of the clients' optimizer, if it is momentum, adam or rmsprop
    weight_decay: float = 0.0  # weight decay of the clients
    schedule: str = "constant"  # of the learning rate over the rounds: constant, linear, cosine or step
    warmup: int = 0  # number of first rounds over which the learning rate rises
    augment: str = "none"  # augmentation of pictures, drawn anew in every step: none, flip or flip-crop
    views: int = 1  # number of augmented views of a record, whose mean gradient is clipped as one
    precision: str = "float32"  # float32, or bfloat16 on a GPU: faster, and clipped a little harder
    # (docs/reduced-precision.md)
    compile: bool = False  # on a GPU, compile frequent passes: takes a minute at first (deep networks: minutes), and a
    # resumed run may differ in the last digits


@dataclass(frozen=True)
class ServerKeys:
    """What the server does with the clients' updates."""

    server_lr: float | None = None  # learning rate of the server, on the mean update (default: the algorithm's)
    merge: str = "mean"  # how clients' updates are combined: mean; against malicious clients median, trimmed:SHARE,
    # krum:MALICIOUS[:KEPT] or norm-bound:LENGTH (docs/robust.md)
    averaging: str | None = None  # averaging of the models shown: none (default), tail:SHARE of the last rounds
    # (default with normalise: tail:0.25), ema:DECAY or polynomial:POWER


@dataclass(frozen=True)
class RunKeys:
    """Where and how the run is computed and stored."""

    baseline: bool = False  # afterwards, train the same model without privacy, for comparison
    device: str = "auto"  # auto, cpu or cuda
    memory_gb: float = 2.0  # memory, in GB, for client weights held at the same time
    federation: str = "simulator"  # who runs the clients: simulator; workers: processes on all cores; or ray: the
    # same as Ray actors, on one or several machines
    workers: int = 0  # with federation = workers or ray: their number, at most one per block (0: as many as this
    # machine has cores and free memory for and as can be busy)
    blocks: int | None = None  # groups of clients computed separately, which affects the last digits (default: 1;
    # workers and ray: 64, or one per client)
    evaluate_every: int | None = None  # rounds between two evaluations (default: 1 on public test data, otherwise only
    # one at the end)
    checkpoint_seconds: float = 5.0  # shortest time between two checkpoints, in seconds
    audit: bool = False  # plant canaries among the records, and end with a lower bound on epsilon beside the accounted
    # one; at most 2 % of the records, and 1000, are canaries, which cost a little accuracy
    record_views: bool = False  # keep what the server and the public see in every round, in the private part
    name: str | None = None  # name of the run folder (default: derived from the time)
    out: str = "runs"  # folder in which run folders are created
    ledger: str | None = None  # file to which all jobs are charged (default: the user's registry, see `sordino
    # ledger`)


GROUPS = {
    "method": MethodKeys,
    "privacy": PrivacyKeys,
    "data": DataKeys,
    "model": ModelKeys,
    "rounds": RoundKeys,
    "local": LocalKeys,
    "server": ServerKeys,
    "run": RunKeys,
}  # in the order of a file
