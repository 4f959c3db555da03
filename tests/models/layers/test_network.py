from __future__ import annotations

import pytest
import torch
from torch import nn

from vhl.models.layers.network import Layers, Network, cut


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
