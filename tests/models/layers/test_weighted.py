from __future__ import annotations

import pytest
import torch
from torch import nn

from vhl.models.layers import weighted
from vhl.models.layers.weighted import weighted_batch_norm


@pytest.fixture(params=["groups", "images"], autouse=True)
def _way(request, monkeypatch):
    """As on a CPU, and as on other devices."""
    if request.param == "images":
        monkeypatch.setattr(weighted, "_groups", weighted._images)


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


@pytest.mark.parametrize("size", [4, 1])
@pytest.mark.parametrize("shares", [[0.1, 0.2, 0.3, 0.4, 0.0], [0.25, 0.25, 0.25, 0.25, 0.0]])
def test_a_weight_of_zero_is_leaving_the_image_out(size, shares):
    generator = torch.Generator().manual_seed(1)
    x, dz = torch.randn(2, 5, 3, size, size, generator=generator, dtype=torch.float64)
    dz[4] = 0
    weights = torch.tensor(shares, dtype=torch.float64)
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


def test_a_single_value_that_counts_is_normalised_to_the_bias():
    """The pixel of one image of 1×1: the others are fillers."""
    x = torch.arange(6.0, dtype=torch.float64).view(3, 2, 1, 1)
    state = _channels(torch.Generator().manual_seed(4), 2)
    mean, variance, _, bias = (own.clone() for own in state)
    ours = weighted_batch_norm(x, torch.tensor([1.0, 0, 0], dtype=torch.float64), *state)
    torch.testing.assert_close(ours[0].flatten(), bias, rtol=1e-12, atol=0)
    torch.testing.assert_close(state[0], 0.9 * mean + 0.1 * x[0].flatten(), rtol=1e-12, atol=0)
    torch.testing.assert_close(state[1], 0.9 * variance, rtol=1e-12, atol=0)


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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_groups_of_neighbours_and_layouts_against_the_formula(layout):
    """Two groups of equal weight, one that counts nothing between them; by autograd through the formula."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.tensor([0.1] * 5 + [0.0] * 2 + [0.125] * 4, dtype=torch.float64)
    start = torch.randn(11, 3, 4, 6, generator=generator, dtype=torch.float64) * 2 + 3
    dz = torch.randn(11, 3, 4, 6, generator=generator, dtype=torch.float64)
    state = _channels(generator)
    before = [own.clone() for own in state]
    found, expected = (start.clone().to(memory_format=layout).requires_grad_() for _ in range(2))
    ours = weighted_batch_norm(found, weights, *state)
    each = weights[:, None, None, None] / 24
    mean = (each * expected).sum((0, 2, 3), keepdim=True)
    variance = (each * (expected - mean) ** 2).sum((0, 2, 3), keepdim=True)
    weight, bias = (own.view(1, 3, 1, 1) for own in state[2:])
    theirs = (expected - mean) / (variance + 1e-5).sqrt() * weight + bias
    ours.backward(dz)
    theirs.backward(dz)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-9, atol=1e-11)
    count = 9 * 24  # pixels of images that count at all
    moved = (mean.flatten(), variance.flatten() * count / (count - 1))
    for now, was, new in zip(state, before, moved, strict=False):
        torch.testing.assert_close(now, 0.9 * was + 0.1 * new.detach(), rtol=1e-12, atol=0)


def test_half_precision_has_statistics_in_single():
    generator = torch.Generator().manual_seed(6)
    x = (torch.randn(8, 3, 6, 6, generator=generator) + 30).bfloat16()
    state = [own.float() for own in _channels(generator)]
    theirs = [own.clone() for own in state]
    half, single = x.clone().requires_grad_(), x.float().requires_grad_()
    weights = torch.full((8,), 1 / 8)
    ours, expected = (
        weighted_batch_norm(half, weights, *state),
        weighted_batch_norm(single, weights, *theirs),
    )
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(state[0], theirs[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(ours.float(), expected, rtol=2e-2, atol=2e-2)
    dz = torch.randn(8, 3, 6, 6, generator=generator)
    ours.backward(dz.bfloat16())
    expected.backward(dz)
    torch.testing.assert_close(half.grad.float(), single.grad, rtol=5e-2, atol=5e-2)


def test_what_goes_through_the_statistics_is_not_rounded_before_it_is_added():
    """Rounded once for all pixels of an image it would not average out: a channel's gradients sum to 0."""
    generator = torch.Generator().manual_seed(7)
    x = (torch.randn(32, 4, 8, 8, generator=generator) + 10).bfloat16().requires_grad_()
    state = [torch.zeros(4), torch.ones(4), torch.ones(4), torch.zeros(4)]
    weights = torch.tensor([0.5 / 24] * 24 + [0.5 / 8] * 8)
    dz = torch.randn(32, 4, 8, 8, generator=generator) + 1
    weighted_batch_norm(x, weights, *state).backward(dz.bfloat16())
    sums, sizes = (part.double().sum((0, 2, 3)) for part in (x.grad, x.grad.abs()))
    assert (sums.abs() / sizes).max() < 1e-3
