from __future__ import annotations

import pytest
import torch

from vhl.models.cnn import CNN


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("size", "maps"),
    [((16, 16), [(16, 16), (8, 8), (4, 4)]), ((9, 7), [(9, 7), (5, 4), (3, 2)]), ((1, 1), [(1, 1)] * 3)],
)
def test_maps_halve_and_widths_double(channels, size, maps):
    features, logits = CNN(width=4).build(5, channels, size).eval()(torch.zeros(2, channels, *size))
    shapes = {tap: tuple(feature.shape) for tap, feature in features.items()}
    assert shapes == {
        "stage1": (2, 4, *maps[0]),
        "stage2": (2, 8, *maps[1]),
        "stage3": (2, 16, *maps[2]),
        "last": (2, 16),
    }
    assert logits.shape == (2, 5)


def test_parameters_by_hand():
    network = CNN(width=2).build(3, 1, (8, 8))
    convolutions = 9 * (1 * 2 + 2 * 4 + 4 * 8)
    norms, head = 2 * (2 + 4 + 8), 8 * 3 + 3
    assert sum(parameter.numel() for parameter in network.parameters()) == convolutions + norms + head


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_only_batch_norm_mixes_samples(norm):
    torch.manual_seed(0)
    network = CNN(width=4, norm=norm).build(3, 1, (8, 8)).train()
    images = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        together, alone = network(images)[1][:2], network(images[:2])[1]
    assert torch.allclose(together, alone, atol=1e-5) == (norm == "group")


def test_widths_that_sixteen_does_not_divide_can_be_group_normalised():
    features, _ = CNN(width=25, norm="group").build(3, 1, (8, 8))(torch.ones(1, 1, 8, 8))
    assert features["last"].shape == (1, 100)
