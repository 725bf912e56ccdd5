import pytest
import torch
from torch import nn

import sordino
from sordino.core.errors import ModelError
from sordino.tasks.validate import fix, validate
from support.problems import CLASSES, FEATURES, federation, held_out, mlp

SAMPLE = held_out(3)[0]


def refused(module, *words, sample=SAMPLE):
    with pytest.raises(ModelError) as error:
        validate(module, sample)
    text = str(error.value)
    assert "\n" not in text and len(text) < 300
    for word in words:
        assert word in text


def net(*middle):
    return nn.Sequential(nn.Linear(FEATURES, 8), *middle, nn.Linear(8, CLASSES))


class Counter(nn.Module):
    """An integer buffer that counts batches, or records, or stays."""

    def __init__(self, step):
        super().__init__()
        self.inner, self.step = nn.Linear(FEATURES, CLASSES), step
        self.register_buffer("seen", torch.tensor(3))

    def forward(self, x):
        if self.training:
            self.seen += self.step
        return self.inner(x)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.inner(x - x.mean(dim=0, keepdim=True))


class Scaled(nn.Module):
    """A 0-d parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.inner = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.inner(x) * self.scale


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(FEATURES, FEATURES, bias=False)
        self.b = nn.Linear(FEATURES, FEATURES, bias=False)
        self.b.weight = self.a.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(self.b(torch.tanh(self.a(x))))


def train(module, tmp_path, clients=None, **keys):
    keys = {"mode": "research", "rounds": 3, "learning_rate": 0.3, "out": str(tmp_path), "device": "cpu"} | keys
    return sordino.train(module, clients or federation(), test=held_out(), **keys)


def test_a_sound_model_is_left_as_it_was():
    module = net(nn.Dropout(0.5), nn.ReLU())
    module.train()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    state = torch.get_rng_state()
    validate(module, SAMPLE)
    assert module.training and all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_batch_norm_is_named_and_a_fix_offered():
    refused(net(nn.BatchNorm1d(8)), "1 is BatchNorm1d", "GroupNorm", "fix_model=True", "--fix-model")
    inner = nn.Sequential(nn.Linear(FEATURES, 8), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(8)), nn.Linear(8, CLASSES))
    refused(inner, "1.1 is BatchNorm1d")


def test_fix_model_works_end_to_end(tmp_path):
    module = net(nn.BatchNorm1d(8), nn.ReLU(inplace=True))
    with pytest.raises(ModelError):
        train(module, tmp_path)
    result = train(module, tmp_path, fix_model=True)
    assert result.guarantee.epsilon <= 2 and len(result.notes) == 2
    assert result.notes[0].startswith("1: BatchNorm1d -> GroupNorm(")
    assert isinstance(result.model[1], nn.GroupNorm) and not result.model[2].inplace
    assert isinstance(module[1], nn.BatchNorm1d) and module[2].inplace  # the user's own is left alone


def test_in_place_activations_and_running_statistics_are_refused_and_fixed():
    refused(net(nn.ReLU(inplace=True)), "1: ReLU(inplace=True)", "fix_model")
    running = nn.Sequential(nn.Unflatten(1, (4, 5)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten(),
                            nn.Linear(FEATURES, CLASSES))  # fmt: skip
    refused(running, "1: InstanceNorm1d keeps running statistics", "fix_model")
    fixed, notes = fix(running)
    validate(fixed, SAMPLE)
    assert notes == ["1: running statistics off"] and running[1].track_running_stats
    plain = nn.Sequential(nn.Unflatten(1, (4, 5)), nn.InstanceNorm1d(4), nn.Flatten(), nn.Linear(FEATURES, CLASSES))
    validate(plain, SAMPLE)


def test_a_model_that_is_only_a_batch_norm_cannot_be_fixed():
    refused(nn.BatchNorm1d(FEATURES), "the model is BatchNorm1d")
    with pytest.raises(ModelError, match="nothing else to train"):
        fix(nn.BatchNorm1d(FEATURES))


def test_a_buffer_that_changes_is_refused_and_a_constant_one_is_not(tmp_path):
    refused(Counter(1), "buffer seen (torch.int64) changes in training")
    validate(Counter(0), SAMPLE)
    result = train(Counter(0), tmp_path)
    assert int(result.model.seen) == 3


@pytest.mark.parametrize("first", [3, 1])
def test_a_model_that_mixes_records_is_refused(first, tmp_path):
    """Even where the first client has a single record to try it on."""
    refused(Mixer(), "depends on the other records")
    with pytest.raises(ModelError, match="depends on the other records"):
        train(Mixer(), tmp_path, clients=federation((first, 12)))


class Late(nn.Module):
    """Mixes records in large batches only, or looks back at earlier calls."""

    def __init__(self, size=None):
        super().__init__()
        self.inner, self.size, self.total = nn.Linear(FEATURES, CLASSES), size, 0.0

    def forward(self, x):
        y = self.inner(x)
        if self.size is not None:
            return y - y.mean(0) if len(x) > self.size else y
        self.total = self.total + float(y.detach().mean())
        return y + self.total


def test_a_model_that_mixes_records_in_large_batches_is_refused():
    refused(Late(8), "depends on the other records")
    validate(Late(64), SAMPLE)  # never met here; gradients are taken one record at a time


def test_a_model_that_looks_back_is_refused():
    module = Late()
    refused(module, "change from call to call")
    assert module.total == 0.0


def test_a_wrong_input_shape_is_one_line():
    refused(nn.Linear(7, 3), "cannot take a batch of shape (3, 20)")
    refused(nn.Conv2d(1, 1, 3), "cannot take a batch of shape")


def test_a_model_must_return_one_row_a_record():
    class Two(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y, y

    class Mean(nn.Linear):
        def forward(self, x):
            return super().forward(x).mean(dim=0)

    refused(Two(FEATURES, 3), "one tensor with one row per record")
    refused(Mean(FEATURES, 2), "one row per record")


def test_what_cannot_be_trained_is_refused():
    frozen = mlp()
    for p in frozen.parameters():
        p.requires_grad_(False)
    refused(frozen, "no trainable parameter")
    refused(nn.ReLU(), "no trainable parameter")
    refused(mlp().double(), "0.weight is torch.float64", sample=SAMPLE.double())
    broken = mlp()
    with torch.no_grad():
        broken[2].bias[1] = float("nan")
    refused(broken, "2.bias", "nan")
    refused(nn.LazyLinear(3), "has no shape yet")


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg"])
def test_a_frozen_parameter_never_moves(method, tmp_path):
    module = mlp()
    module[0].weight.requires_grad_(False)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    result = train(module, tmp_path, method=method)
    after = result.model.state_dict()
    assert torch.equal(after["0.weight"], before["0.weight"])
    assert not (after["0.bias"] == before["0.bias"]).any() and not (after["2.weight"] == before["2.weight"]).any()
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())  # nor the user's own module


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg", "none"])
def test_tied_weights_train_and_stay_tied(method, tmp_path):
    result = train(Tied(), tmp_path, method=method)
    assert result.model.b.weight is result.model.a.weight
    assert len(list(result.model.parameters())) == 3


def test_the_stored_model_of_tied_weights_can_be_loaded(tmp_path):
    from safetensors.torch import load_file

    result = train(Tied(), tmp_path)
    fresh = Tied()
    fresh.load_state_dict(load_file(result.folder / "public" / "model.safetensors"))
    assert torch.equal(fresh.a.weight, result.model.a.weight) and fresh.b.weight is fresh.a.weight


@pytest.mark.parametrize("method", ["dp-sgd", "dp-fedavg", "none"])
def test_a_0d_parameter_trains(method, tmp_path):
    result = train(Scaled(), tmp_path, method=method, epsilon=50.0)
    assert result.model.scale.shape == () and result.model.scale.item() != 0.5


def test_a_0d_parameter_is_noised(tmp_path):
    """Zero inputs and a zero layer: the scale has no gradient at all, and moves by noise alone."""
    moved = set()
    for seed in (1, 2):
        module = Scaled()
        nn.init.zeros_(module.inner.weight)
        nn.init.zeros_(module.inner.bias)
        zeros = [(torch.zeros(5, FEATURES), torch.zeros(5, dtype=torch.int64)) for _ in range(4)]
        result = train(module, tmp_path, clients=zeros, seed=seed, rounds=1)
        moved.add(result.model.scale.item())
    assert len(moved) == 2 and 0.5 not in moved
