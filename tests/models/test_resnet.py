from __future__ import annotations

import pytest
import torch
from torch import nn

from vhl.models.resnet import ResNet8, ResNet10, ResNet18, ResNet34, ResNet50


def _parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _lengths(model, channels: int, size: tuple[int, int]) -> dict[str, int]:
    with torch.device("meta"):
        features, _ = model.build(10, channels, size).eval()(torch.zeros(1, channels, *size))
    return {tap: feature[0].numel() for tap, feature in features.items()}


def test_resnet8_has_78042_parameters():
    assert _parameters(ResNet8().build(10, 3, (32, 32))) == 78_042


@pytest.mark.parametrize(
    ("model", "outputs", "millions"),
    [(ResNet10(), 20, 4.91), (ResNet18(), 20, 11.18), (ResNet34(), 20, 21.29), (ResNet50(), 200, 23.91)],
)
def test_millions_of_parameters(model, outputs, millions):
    with torch.device("meta"):
        assert round(_parameters(model.build(outputs, 3, (32, 32))) / 1e6, 2) == millions


def test_resnet18_has_the_parameters_of_its_layers():
    def convolution(inputs, outputs, side):
        return side * side * inputs * outputs + 2 * outputs  # with the scale and shift of its batch norm

    expected = convolution(3, 64, 3) + 512 * 10 + 10
    for inputs, outputs in [(64, 64), (64, 128), (128, 256), (256, 512)]:
        expected += convolution(inputs, outputs, 3) + 3 * convolution(outputs, outputs, 3)
        expected += convolution(inputs, outputs, 1) if inputs != outputs else 0
    with torch.device("meta"):
        assert _parameters(ResNet18().build(10, 3, (32, 32))) == expected


def test_taps_of_resnet18():
    assert _lengths(ResNet18(), 3, (32, 32)) == {
        "stage1": 65_536,
        "stage2": 32_768,
        "stage3": 16_384,
        "stage4": 8_192,
        "last": 512,
    }


def test_resnet8_has_three_stages():
    assert _lengths(ResNet8(), 3, (32, 32)) == {
        "stage1": 16 * 32 * 32,
        "stage2": 32 * 16 * 16,
        "stage3": 64 * 8 * 8,
        "last": 64,
    }


@pytest.mark.parametrize("channels", [1, 3])
def test_odd_sizes_are_rounded_up_when_halved(channels):
    assert _lengths(ResNet8(width=4), channels, (33, 31)) == {
        "stage1": 4 * 33 * 31,
        "stage2": 8 * 17 * 16,
        "stage3": 16 * 9 * 8,
        "last": 16,
    }


def test_bottlenecks_are_four_times_as_wide_as_their_stage():
    lengths = _lengths(ResNet50(width=8), 3, (16, 16))
    assert lengths == {
        "stage1": 32 * 256,
        "stage2": 64 * 64,
        "stage3": 128 * 16,
        "stage4": 256 * 4,
        "last": 256,
    }


@pytest.mark.parametrize(
    ("model", "blocks", "kernels"),
    [
        (ResNet34(width=4), [3, 4, 6, 3], [3, 3]),
        (ResNet50(width=4), [3, 4, 6, 3], [1, 3, 1]),
        (ResNet18(width=4), [2, 2, 2, 2], [3, 3]),
    ],
)
def test_stages_are_made_of_blocks(model, blocks, kernels):
    network = model.build(10, 3, (8, 8))
    assert [len(stage) for stage in network.stages] == blocks
    for stage in network.stages:
        for block in stage:
            convolutions = [layer for layer in block.residual if isinstance(layer, nn.Conv2d)]
            assert [layer.kernel_size[0] for layer in convolutions] == kernels
    # the 3×3 convolution of a later stage's first block halves the map
    strides = [layer.stride[0] for layer in network.stages[1][0].residual if isinstance(layer, nn.Conv2d)]
    assert strides == ([2, 1] if kernels == [3, 3] else [1, 2, 1])


def test_a_block_adds_its_shortcut_before_the_last_activation():
    network = ResNet8(width=4).build(3, 1, (6, 6)).eval()
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    same, halving = network.stages[0][0], network.stages[1][0]
    expected = (same.norm.normalize(same.residual(x)) + x).clamp(min=0)
    assert torch.equal(same(x), expected)
    projected = nn.functional.conv2d(x, halving.shortcut[0].weight, stride=2) / (1 + 1e-5) ** 0.5
    assert torch.allclose(
        halving(x), (halving.norm.normalize(halving.residual(x)) + projected).clamp(min=0), atol=1e-6
    )


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_only_batch_norm_mixes_samples_and_keeps_statistics(norm):
    torch.manual_seed(0)
    network = ResNet8(width=4, norm=norm).build(3, 3, (8, 8)).train()
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        together, alone = network(images)[1][:2], network(images[:2])[1]
    assert torch.allclose(together, alone, atol=1e-5) == (norm == "group")
    assert bool(list(network.buffers())) == (norm == "batch")


def test_taps_are_not_changed_by_later_stages():
    network = ResNet10(width=4).build(3, 3, (8, 8)).eval()
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    features, _ = network(images)
    expected = network.stem(images)
    for number, stage in enumerate(network.stages, 1):
        expected = stage(expected)
        assert torch.equal(features[f"stage{number}"], expected)
    assert torch.allclose(features["last"], expected.flatten(2).mean(2))


@pytest.mark.parametrize(("init", "scale"), [("torch", 1.0), ("he", 6**0.5)])
def test_initial_convolutions(init, scale):
    """Of as many inputs as outputs: He's are √6 times as large as PyTorch's."""
    torch.manual_seed(0)
    network = ResNet8(init=init).build(10, 3, (32, 32))
    inner = network.get_submodule("stages.2.0.residual.2")
    assert isinstance(inner, nn.Conv2d)
    assert inner.weight.std().item() * (3 * 9 * 64) ** 0.5 == pytest.approx(scale, rel=0.02)
