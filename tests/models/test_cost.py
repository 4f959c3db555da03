from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vhl.models.cost import MultiplyAdds
from vhl.models.resnet import ResNet8, ResNet50


def test_it_agrees_with_torchs_own_counter() -> None:
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, groups=1),
        nn.Conv2d(8, 8, 3, padding=1, groups=4),
        nn.ConvTranspose2d(8, 5, 4, stride=2),
        nn.Flatten(),
        nn.LazyLinear(7),
    )
    layers(torch.zeros(1, 3, 12, 12))
    for network, size in (
        (layers, 12),
        (ResNet8().build(10, 3, (32, 32)), 32),
        (ResNet50().build(7, 3, (8, 8)), 8),
    ):
        images = torch.zeros(2, 3, size, size)
        theirs = FlopCounterMode(display=False)
        with theirs:
            network(images)
        with MultiplyAdds(network) as ours:
            network(images)
        assert 2 * ours.total == theirs.get_total_flops() > 0


def test_it_leaves_no_hooks_behind() -> None:
    layer = nn.Linear(2, 3)
    with MultiplyAdds(layer) as count:
        layer(torch.zeros(1, 2))
    layer(torch.zeros(1, 2))
    assert count.total == 6
