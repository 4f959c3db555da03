from __future__ import annotations

import pytest
import torch
from torch import nn
from vhl.models._network import (
    BatchNorm,
    Layers,
    Network,
    cut,
    freeze_statistics,
    weighted_statistics,
)

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


# --- images that count differently, and mosaics --------------------------------------------------------


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


def test_cut_maps_are_their_tiles_row_by_row():
    maps = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6).float()
    tiles = cut(maps, 2)
    assert tiles.shape == (8, 3, 2, 3)
    assert torch.equal(tiles[0], maps[0, :, :2, :3]) and torch.equal(tiles[1], maps[0, :, :2, 3:])
    assert torch.equal(tiles[2], maps[0, :, 2:, :3]) and torch.equal(tiles[7], maps[1, :, 2:, 3:])


def test_mosaics_give_a_feature_and_logits_a_tile():
    """Where nothing leaks from tile to tile, as with 1×1 kernels, a mosaic is what its tiles are alone."""
    stem = nn.Conv2d(1, 4, 1)
    network = Network(stem, [nn.ReLU()], 4, 3).eval()
    images = torch.randn(2 + 4, 1, 4, 4, generator=torch.Generator().manual_seed(5))
    natural, small = images[:2], images[2:, :, :2, :2]
    mosaic = torch.cat([torch.cat([small[0], small[1]], 2), torch.cat([small[2], small[3]], 2)], 1)[None]
    features, logits = network(torch.cat([natural, mosaic]), 2, 2)
    assert logits.shape == (6, 3) and features["last"].shape == (6, 4)
    torch.testing.assert_close(logits[:2], network(natural)[1])
    torch.testing.assert_close(logits[2:], network(small)[1])
