"""A pretrained model, of which a part is trained; the rest must not move, mix records or change what comes out."""

import copy

import pytest
import torch
from reference import middle_norm, naive, relative
from torch import nn

import sordino
from sordino.core.errors import ModelError, SpecError
from sordino.core.types import Batch
from sordino.core.vector import Layout
from sordino.gradients import CohortGradients
from sordino.tasks.adapt import FrozenNorm, LowRank, freeze, head, lora, merge_lora
from sordino.tasks.losses import cross_entropy
from sordino.tasks.validate import validate
from support.problems import CLASSES, FEATURES, federation, held_out

X = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 1, 0])


class Pretrained(nn.Module):
    """As they come: BatchNorm with statistics, in-place activations, a fully connected end."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.fc, self.norm, self.fc2 = nn.Linear(54, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc2(self.norm(self.fc(self.stem(x).flatten(1))).tanh())


@pytest.fixture
def pretrained():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Pretrained()
        for _ in range(3):
            module(torch.randn(20, 3, 8, 8) * 2 + 1)  # statistics that are not those of the start
    return module.eval()


def trainable(module):
    return {name for name, p in module.named_parameters() if p.requires_grad}


def small():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def test_freezing_keeps_the_outputs_and_leaves_only_what_was_named(pretrained):
    before = copy.deepcopy(pretrained.state_dict())
    frozen = freeze(pretrained, ["fc"])
    assert trainable(frozen) == {"fc.weight", "fc.bias"}  # and not fc2
    torch.testing.assert_close(frozen.train()(X), pretrained(X))
    assert isinstance(frozen.stem[1], FrozenNorm) and isinstance(frozen.norm, FrozenNorm)
    assert list(frozen.state_dict()) == list(before)
    pretrained.load_state_dict(frozen.state_dict())
    assert len(trainable(pretrained)) == 8  # the caller's own is as it was
    assert all(torch.equal(before[k], v) for k, v in pretrained.state_dict().items())


def test_frozen_statistics_neither_mix_records_nor_move(pretrained):
    frozen = freeze(pretrained, ["fc2"]).train()
    validate(frozen, X)
    torch.testing.assert_close(frozen(X)[:1], frozen(X[:1]))
    with pytest.raises(ModelError, match="BatchNorm"):
        validate(pretrained, X)
    with pytest.raises(ModelError, match=r"stem\.1 is BatchNorm2d"):  # a trainable one is not made harmless
        validate(freeze(pretrained, ["stem"]), X)
    with pytest.raises(ModelError, match="no running statistics"):
        freeze(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)), ["0"])


def test_an_unknown_name_is_told_the_nearest(pretrained):
    with pytest.raises(ModelError, match=r"nothing named 'fc3'. Did you mean fc, fc2"):
        freeze(pretrained, ["fc", "fc3"])
    with pytest.raises(ModelError, match=r"no layer 'stemm'. Did you mean stem"):
        head(pretrained, "stemm", 4)
    with pytest.raises(ModelError, match=r"nothing named 'stem.00'"):
        lora(pretrained, targets=["stem.00"])
    with pytest.raises(ModelError, match=r"write \['fc'\]"):
        freeze(pretrained, "fc")
    with pytest.raises(ModelError, match=r"stem\.0 is Conv2d"):
        head(pretrained, "stem.0", 4)
    with pytest.raises(SpecError, match="rank must be at least 1"):
        lora(pretrained, rank=0)


def test_a_head_is_fresh_zero_and_alone(pretrained):
    module = head(pretrained, "fc2", 7)
    assert trainable(module) == {"fc2.weight", "fc2.bias"}
    assert torch.equal(module(X), torch.zeros(5, 7))
    validate(module, X)
    with torch.no_grad():
        assert not torch.equal(pretrained(X), module(X))


@pytest.mark.parametrize("targets", [None, ["stem", "fc"]], ids=["linear", "conv"])
def test_low_rank_additions_start_at_nothing_and_have_exact_gradients(pretrained, targets):
    module = lora(pretrained, rank=2, alpha=3.0, targets=targets, train=["fc2"])
    added = {"fc.down.weight", "fc.up.weight"} | ({"stem.0.down.weight", "stem.0.up.weight"} if targets else set())
    assert trainable(module) == added | {"fc2.weight", "fc2.bias"}
    torch.testing.assert_close(module(X), pretrained(X))
    layout, batch = Layout.of(module), Batch(X, Y, (2, 3))
    weights = layout.read(module) + 0.1 * torch.randn(layout.dim, generator=torch.Generator().manual_seed(2))
    clip = middle_norm(module, weights, batch, cross_entropy)
    gradients = CohortGradients.of(module, cross_entropy, layout)
    assert relative(gradients.sums(weights, batch, clip), naive(module, weights, batch, clip, cross_entropy)) < 1e-4
    assert gradients.path == "book-keeping", gradients.reason


@pytest.mark.parametrize("stride,padding,dilation", [(1, 0, 1), (2, 1, 1), (1, "same", 2)])
def test_merged_layers_give_the_same_outputs_under_the_old_names(stride, padding, dilation):
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride, padding, dilation), nn.Flatten(), nn.LazyLinear(4, bias=False)
    )  # fmt: skip
    net(X)
    module = lora(net, rank=3, alpha=2.0, targets=["0", "2"], seed=5)
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn(p.shape, generator=g))
    merged = merge_lora(module)
    torch.testing.assert_close(merged(X), module(X), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(merged(X), net(X), atol=0.1)
    assert list(merged.state_dict()) == list(net.state_dict())
    assert [type(layer) for layer in merged] == [type(layer) for layer in net]
    assert isinstance(module[0], LowRank)  # merging gives a copy


def test_seeds_decide_and_no_global_generator_moves():
    net, state = small(), torch.get_rng_state()
    one, same, other = lora(net), lora(net), lora(net, seed=1)
    head(net, "2", 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one[0].down.weight, same[0].down.weight)
    assert not torch.equal(one[0].down.weight, other[0].down.weight)
    assert not torch.equal(one[0].down.weight[:, :CLASSES], one[2].down.weight[:, :CLASSES])
    scale = one[2].down.weight.std() * one[2].base.in_features ** 0.5
    assert 0.7 < scale < 1.3


def test_the_addition_is_alpha_over_rank_times_b_a():
    base = nn.Linear(6, 4)
    layer = lora(base, rank=2, alpha=3.0)
    with torch.no_grad():
        layer.up.weight.copy_(torch.arange(8.0).view(4, 2))
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
    expected = x @ base.weight.T + base.bias + 1.5 * x @ layer.down.weight.T @ layer.up.weight.T
    torch.testing.assert_close(layer(x), expected)
    assert lora(base, rank=5).scale == 1.0 and isinstance(merge_lora(layer), nn.Linear)


def test_layers_that_are_used_twice_share_one_addition():
    layer = nn.Linear(4, 4)
    module = lora(nn.Sequential(layer, nn.Tanh(), layer))
    assert module[0] is module[2] and isinstance(module[0], LowRank)


def test_code_that_reads_a_weight_directly_sees_the_addition():
    net = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    module = lora(net, targets=["linear1"])
    with torch.no_grad():
        module.linear1.up.weight.fill_(0.2)
        x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(4))
        torch.testing.assert_close(module(x), merge_lora(module)(x), rtol=1e-4, atol=1e-4)  # the fused path of eval
        torch.testing.assert_close(module.train()(x), merge_lora(module).train()(x), rtol=1e-4, atol=1e-4)


def test_what_lora_cannot_add_to_is_refused():
    with pytest.raises(ModelError, match="no layer to adapt"):
        lora(nn.Sequential(nn.Conv2d(3, 4, 3)))
    with pytest.raises(ModelError, match="groups or padding"):
        lora(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), targets=["0"])


def test_private_training_moves_the_additions_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = lora(small(), rank=2, train=["2.bias"])
    before = {k: v.clone() for k, v in module.state_dict().items()}
    result = sordino.train(
        module, federation(), method="dp-sgd", epsilon=8.0, delta=1e-4, rounds=3, batch_rate=0.5, learning_rate=0.5,
        test=held_out(), seed=1,
    )  # fmt: skip
    after = result.model.state_dict()
    moved = {k for k, v in after.items() if not torch.equal(v.cpu(), before[k])}
    assert moved == {"0.down.weight", "0.up.weight", "2.down.weight", "2.up.weight", "2.base.bias"}
    assert result.guarantee.epsilon <= 8.0
    x = held_out()[0]
    torch.testing.assert_close(merge_lora(result.model)(x), result.model(x), rtol=1e-4, atol=1e-4)
    assert list(merge_lora(result.model).state_dict()) == list(small().state_dict())
