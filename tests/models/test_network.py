from __future__ import annotations

import pytest
import torch
from torch import nn

from vhl.models._network import BatchNorm, Layers, Network


def test_batch_norm_is_pytorchs_to_the_bit():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = BatchNorm(5), nn.BatchNorm2d(5)
    for layer in (ours, theirs):
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(0.5, 2, 5))
            layer.bias.copy_(torch.linspace(-1, 1, 5))
    for _ in range(3):
        x = torch.randn(4, 5, 6, 7, generator=generator) * 3 + 1
        pair = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [layer(x) for layer, x in zip((ours, theirs), pair, strict=True)]
        assert torch.equal(*outputs)
        gradients = [
            torch.autograd.grad(output.square().sum(), [x, layer.weight, layer.bias])
            for output, x, layer in zip(outputs, pair, (ours, theirs), strict=True)
        ]
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert torch.equal(ours.running_mean, theirs.running_mean)
    assert torch.equal(ours.running_var, theirs.running_var)
    ours.eval()
    theirs.eval()
    before = ours.running_mean.clone()
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.running_mean, before)


def test_the_state_of_a_batch_norm_is_floating_point_alone():
    state = BatchNorm(3).state_dict()
    assert set(state) == {"weight", "bias", "running_mean", "running_var"}
    assert all(tensor.dtype == torch.float32 for tensor in state.values())


@pytest.mark.parametrize(
    ("channels", "groups"), [(64, 4), (512, 32), (16, 1), (8, 1), (40, 2), (50, 2), (53, 1)]
)
def test_group_norm_has_sixteen_channels_a_group_or_more_where_these_do_not_fit(channels, groups):
    layer = Layers("group", "torch").normalization(channels)
    x = torch.randn(2, channels, 3, 3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer(x), nn.GroupNorm(groups, channels)(x))


def test_convolutions_keep_the_size():
    make = Layers("batch", "torch")
    layer = make.convolution(2, 8, 3)
    assert layer.bias is None
    assert layer(torch.zeros(1, 2, 5, 7)).shape == (1, 8, 5, 7)
    assert make.convolution(2, 4, 1, 2)(torch.zeros(1, 2, 5, 7)).shape == (1, 4, 3, 4)


@pytest.mark.parametrize(("init", "variance"), [("torch", 1 / (3 * 9 * 32)), ("he", 2 / (9 * 128))])
def test_variance_of_initial_weights(init, variance):
    torch.manual_seed(0)
    layer = Layers("batch", init).convolution(32, 128, 3)
    assert layer.weight.var().item() == pytest.approx(variance, rel=0.04)


def test_a_network_pools_its_last_map_for_the_head():
    network = Network(nn.Identity(), [nn.AvgPool2d(2), nn.ReLU()], 3, 4)
    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    features, logits = network(images)
    pooled = images.numpy().reshape(2, 3, 2, 2, 2, 2).mean((3, 5))
    assert list(features) == ["stage1", "stage2", "last"]
    assert features["stage1"].numpy() == pytest.approx(pooled, abs=1e-6)
    last = pooled.clip(0).mean((2, 3))
    assert features["last"].numpy() == pytest.approx(last, abs=1e-6)
    weight, bias = (parameter.detach().numpy() for parameter in network.head.parameters())
    assert logits.detach().numpy() == pytest.approx(last @ weight.T + bias, abs=1e-6)
