from __future__ import annotations

import pytest
import torch
from torch import nn

from vhl.models.layers.network import Layers
from vhl.models.layers.norm import BatchNorm, can_weigh, freeze_statistics, weighted_statistics
from vhl.models.resnet import ResNet8


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


def test_foreign_batch_norm_is_frozen_too():
    own, foreign = BatchNorm(2), nn.BatchNorm2d(2)
    whole = nn.Sequential(own, foreign, nn.Dropout()).train()
    freeze_statistics(whole)
    assert [layer.training for layer in whole] == [False, False, True]


def test_weights_last_as_long_as_they_are_said_to():
    network = ResNet8(width=4).build(2, 1, (8, 8))
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def statistics(weights):
        network.load_state_dict(initial)
        with weighted_statistics(network, weights):
            network(x)
        return network.stem[1].running_mean.clone()

    plain, weighted = statistics(None), statistics(torch.tensor([1.0, 0, 0, 0, 0, 0]))
    assert not torch.allclose(plain, weighted, atol=1e-4)
    network.load_state_dict(initial)
    network(x)
    assert torch.equal(network.stem[1].running_mean, plain)
    network.eval()
    before = network(x)[1]
    with weighted_statistics(network, torch.tensor([1.0, 0, 0, 0, 0, 0])):
        assert torch.equal(network(x)[1], before)


def test_only_our_own_batch_norm_can_weigh_images():
    assert can_weigh(ResNet8(width=4).build(2, 1, (8, 8)))
    assert can_weigh(ResNet8(width=4, norm="group").build(2, 1, (8, 8)))
    assert not can_weigh(nn.Sequential(BatchNorm(2), nn.BatchNorm2d(2)))


@pytest.mark.parametrize("relu", [False, True])
def test_one_value_a_channel_is_normalised_to_the_bias(relu):
    """It has no deviation. PyTorch's own layer refuses it, and a client with one image could not train."""
    layer = BatchNorm(3, relu).double()
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([-1.0, 0.5, 2.0]))
    x = torch.tensor([4.0, 5.0, 6.0], dtype=torch.float64).view(1, 3, 1, 1).requires_grad_()
    y = layer(x)
    assert y.flatten().tolist() == ([0, 0.5, 2] if relu else [-1, 0.5, 2])
    y.sum().backward()
    assert not x.grad.any() and not layer.weight.grad.any()
    assert layer.bias.grad.tolist() == ([0, 1, 1] if relu else [1, 1, 1])
    assert layer.running_mean.tolist() == pytest.approx([0.4, 0.5, 0.6])
    assert layer.running_var.tolist() == pytest.approx([0.9] * 3)
