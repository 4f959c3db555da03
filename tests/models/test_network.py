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
    weighted_batch_norm,
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


def _channels(generator: torch.Generator, channels: int = 3) -> list[torch.Tensor]:
    """Running mean and variance, weight and bias."""
    return [torch.rand(channels, generator=generator, dtype=torch.float64) + 0.5 for _ in range(4)]


def test_equal_weights_are_pytorchs_layer_running_statistics_included():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, 4, 5, generator=generator, dtype=torch.float64) * 3 + 7
    state = _channels(generator)
    theirs = [own.clone() for own in state]
    ours = weighted_batch_norm(x, torch.full((6,), 1 / 6, dtype=torch.float64), *state)
    expected = nn.functional.batch_norm(x, *theirs, training=True)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    for own, other in zip(state, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=0)


def test_statistics_are_not_rounded_under_autocast():
    """Channels far from 0: a mean rounded to bfloat16 would shift what is normalised by it."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(8, 3, 6, 6, generator=generator) + 30
    state = [own.float() for own in _channels(generator)]
    theirs = [own.clone() for own in state]
    with torch.autocast("cpu", torch.bfloat16):
        ours = weighted_batch_norm(x, torch.full((8,), 1 / 8), *state)
    expected = nn.functional.batch_norm(x, *theirs, training=True)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state[0], theirs[0], rtol=1e-5, atol=0)


def test_foreign_batch_norm_is_frozen_too():
    own, foreign = BatchNorm(2), nn.BatchNorm2d(2)
    whole = nn.Sequential(own, foreign, nn.Dropout()).train()
    freeze_statistics(whole)
    assert [layer.training for layer in whole] == [False, False, True]


def test_a_weight_of_zero_is_leaving_the_image_out():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 3, 4, 4, generator=generator, dtype=torch.float64)
    dz = torch.randn(5, 3, 4, 4, generator=generator, dtype=torch.float64)
    dz[4] = 0
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0], dtype=torch.float64)
    state = _channels(generator)
    other = [own.clone() for own in state]
    whole, part = x.clone().requires_grad_(), x[:4].clone().requires_grad_()
    with_it = weighted_batch_norm(whole, weights, *state)
    without = weighted_batch_norm(part, weights[:4], *other)
    torch.testing.assert_close(with_it[:4], without, rtol=1e-12, atol=1e-12)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(state, other, strict=True))
    with_it.backward(dz)
    without.backward(dz[:4])
    torch.testing.assert_close(whole.grad[:4], part.grad, rtol=1e-12, atol=1e-12)
    assert not whole.grad[4].any()


def test_a_weight_of_two_is_the_image_twice():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(3, 3, 4, 4, generator=generator, dtype=torch.float64)
    state = _channels(generator)
    mean, variance, weight, bias = (own.clone() for own in state)
    ours = weighted_batch_norm(x, torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64), *state)
    twice = nn.functional.batch_norm(torch.cat([x, x[:1]]), mean, variance, weight, bias, training=True)
    torch.testing.assert_close(ours, twice[:3], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state[0], mean, rtol=1e-10, atol=0)


def test_the_gradient_of_the_weighted_layer():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 2, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([0.4, 0.1, 0.0, 0.5], dtype=torch.float64)
    mean, variance, weight, bias = _channels(generator, 2)

    def layer(x, weight, bias):
        return weighted_batch_norm(x, weights, mean.clone(), variance.clone(), weight, bias)

    assert torch.autograd.gradcheck(layer, (x, weight.requires_grad_(), bias.requires_grad_()))


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
    assert torch.equal(statistics(None), plain)
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
