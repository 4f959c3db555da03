from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")
from vhl.models.layers import _kernels
from vhl.models.layers.weighted import weighted_batch_norm

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs a GPU, or TRITON_INTERPRET=1",
)
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_RELU = pytest.mark.parametrize("relu", [False, True])
_SKIP = pytest.mark.parametrize("skip", [False, True])


def _inputs(shape, dtype, skip, *, mean=1.0) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """x, weight, bias and perhaps a skip; the running statistics; the gradient of the output."""
    generator = torch.Generator().manual_seed(sum(shape))
    statistic = torch.promote_types(dtype, torch.float32)

    def images(mean, scale, dtype):
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale + mean
        return values.to(_DEVICE, dtype, memory_format=torch.channels_last)

    def channels(low, high):
        values = torch.rand(shape[1], generator=generator, dtype=torch.float64) * (high - low) + low
        return values.to(_DEVICE, statistic)

    leaves = [images(mean, 1.5, dtype), channels(-2, 2), channels(-1, 1)]
    leaves += [images(0.0, 1.0, dtype)] * skip
    return leaves, [channels(-1, 1), channels(0.5, 2)], images(0.0, 1.0, dtype)


def _ours(leaves, running, relu, training=True) -> Tensor:
    x, weight, bias, *skip = leaves
    skip = skip[0] if skip else None
    return _kernels.batch_norm(x, *running, weight, bias, training=training, skip=skip, relu=relu)


def _pytorchs(leaves, running, relu, training=True) -> Tensor:
    x, weight, bias, *skip = leaves
    z = sum(skip, F.batch_norm(x, *running, weight, bias, training))
    return z.relu() if relu else z


def _results(operation, leaves, running, dz, relu, dtype=None) -> dict[str, Tensor]:
    """Output, gradients and new running statistics, computed in ``dtype``."""
    leaves = [leaf.detach().to(dtype or leaf.dtype).requires_grad_() for leaf in leaves]
    running = [buffer.to(dtype or buffer.dtype, copy=True) for buffer in running]
    z = operation(leaves, running, relu)
    gradients = torch.autograd.grad(z, leaves, dz.to(z.dtype))
    names = ("z", "mean", "variance", "dx", "dweight", "dbias", "dskip")
    return dict(zip(names, [z.detach(), *running, *gradients], strict=False))


def _compare(inputs, relu, tolerances, *, training=True) -> dict[str, Tensor]:
    ours = _results(partial(_ours, training=training), *inputs, relu)
    theirs = _results(partial(_pytorchs, training=training), *inputs, relu, torch.float64)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        tolerance = tolerances.get(name, tolerances["all"])
        torch.testing.assert_close(value.double(), theirs[name], rtol=tolerance, atol=tolerance, msg=name)
    return ours


@_RELU
@_SKIP
@pytest.mark.parametrize(
    ("shape", "programs"),
    [
        ((1, 5, 1, 2), 512),
        ((2, 3, 20, 20), 512),
        ((3, 10, 9, 9), 512),
        ((3, 100, 9, 9), 6),  # groups of three tiles: the last of all is cut, and one is missing
        ((5, 64, 8, 8), 4),
        ((5, 128, 8, 8), 10),  # tiles and groups come out even
    ],
)
def test_training_is_pytorchs(shape, programs, skip, relu, monkeypatch):
    monkeypatch.setattr(_kernels, "_PROGRAMS", programs)
    z = _compare(_inputs(shape, torch.float64, skip), relu, {"all": 1e-10})["z"]
    assert z.is_contiguous(memory_format=torch.channels_last)


@_RELU
@_SKIP
@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (3, 100, 9, 9), (2, 64, 8, 8)])
def test_evaluation_is_pytorchs(shape, skip, relu):
    """With gradients, where statistics are fixed in training, and without."""
    leaves, running, dz = _inputs(shape, torch.float64, skip)
    found = _compare((leaves, running, dz), relu, {"all": 1e-10}, training=False)
    assert torch.equal(found["mean"], running[0]) and torch.equal(found["variance"], running[1])
    with torch.no_grad():
        z = _ours(leaves, running, relu, training=False)
    torch.testing.assert_close(z, found["z"], rtol=1e-10, atol=1e-10)


def test_a_large_mean_does_not_swallow_the_variance(monkeypatch):
    monkeypatch.setattr(_kernels, "_PROGRAMS", 4)
    inputs = _inputs((6, 12, 16, 16), torch.float32, skip=False, mean=1e3)
    # A float32 near 1000 is right to 3e-5, but its square, near 10⁶, to 3e-2.
    tolerances = {"all": 2e-4, "mean": 1e-6, "variance": 1e-5, "dweight": 2e-2}
    _compare(inputs, relu=False, tolerances=tolerances)


@_RELU
@_SKIP
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-9)])
def test_half_precision_is_rounded_only_at_the_end(dtype, tolerance, skip, relu):
    # Twice the error of rounding: Triton's interpreter cuts the digits off.
    tolerances = {"all": 1e-5, "dweight": 1e-4, "z": tolerance, "dx": tolerance}
    ours = _compare(_inputs((3, 40, 8, 8), dtype, skip), relu, tolerances)
    assert ours["z"].dtype == ours["dx"].dtype == dtype
    assert ours["dweight"].dtype == ours["mean"].dtype == torch.float32


@_SKIP
@pytest.mark.parametrize(("dtype", "scale"), [(torch.bfloat16, 1), (torch.float16, 2**-24)])
def test_what_the_relu_or_rounding_made_zero_has_no_gradient(dtype, scale, skip):
    leaves, running, dz = _inputs((4, 6, 8, 8), dtype, skip)
    for leaf in leaves[1:]:
        leaf.mul_(scale)  # 2⁻²⁴ is the smallest float16
    ours = _results(_ours, leaves, running, torch.ones_like(dz), relu=True)
    z = ours["z"].double()
    exact = _pytorchs([leaf.double() for leaf in leaves], [buffer.double() for buffer in running], True)
    assert ((exact > 0) & (z == 0)).any() == (scale < 1)
    assert torch.equal(ours["dbias"].double(), (z > 0).double().sum((0, 2, 3)))
    if skip:
        assert torch.equal(ours["dskip"].double(), (z > 0).double())


def test_nan_passes_the_relu():
    leaves, running, _ = _inputs((2, 3, 4, 4), torch.float32, skip=False)
    leaves[0][0, 1, 0, 0] = torch.nan
    z = _ours(leaves, running, relu=True)
    assert z.isnan().all((0, 2, 3)).tolist() == [False, True, False]
    assert z[:, [0, 2]].isfinite().all()


def test_any_memory_format_gives_the_same_bits():
    leaves, running, dz = _inputs((2, 6, 5, 7), torch.float32, skip=True)
    plain = [leaves[0].contiguous(), *leaves[1:3], leaves[3].contiguous()], running, dz.contiguous()
    assert not plain[0][0].is_contiguous(memory_format=torch.channels_last)
    expected, results = _results(_ours, leaves, running, dz, True), _results(_ours, *plain, True)
    assert all(torch.equal(results[name], expected[name]) for name in expected)


def test_two_runs_give_the_same_bits():
    inputs = _inputs((8, 64, 8, 8), torch.bfloat16, skip=True)
    first, second = _results(_ours, *inputs, True), _results(_ours, *inputs, True)
    assert all(torch.equal(first[name], second[name]) for name in first)


@_RELU
@_SKIP
def test_one_value_a_channel_is_normalised_to_the_bias(skip, relu):
    """It has no deviation; PyTorch's own layer refuses it."""
    leaves, running, dz = _inputs((1, 3, 1, 1), torch.float64, skip)
    found = _results(_ours, leaves, running, dz, relu)
    z = sum(leaves[3:], leaves[2].view(1, 3, 1, 1))
    passed = dz * (z > 0) if relu else dz
    torch.testing.assert_close(found["z"], z.relu() if relu else z)
    torch.testing.assert_close(found["dbias"], passed.flatten())
    torch.testing.assert_close(found["mean"], 0.9 * running[0] + 0.1 * leaves[0].flatten())
    torch.testing.assert_close(found["variance"], 0.9 * running[1])
    assert not found["dx"].any() and not found["dweight"].any()
    if skip:
        assert found["dskip"].equal(passed)


# --- images that count differently ---------------------------------------------------------------------


def _weights(images: int) -> Tensor:
    """Some 0, the others different, 1 in all."""
    weights = torch.arange(images, dtype=torch.float64) % 4
    return (weights / weights.sum()).to(_DEVICE)


@_RELU
@_SKIP
@pytest.mark.parametrize(
    ("shape", "programs"),
    [
        ((2, 5, 3, 2), 512),
        ((3, 10, 9, 9), 512),
        ((7, 100, 9, 9), 6),
        ((5, 64, 8, 8), 4),
        ((5, 128, 8, 8), 10),
    ],
)
def test_weighted_training_is_the_formula(shape, programs, skip, relu, monkeypatch):
    monkeypatch.setattr(_kernels, "_PROGRAMS", programs)
    _compare_with_the_formula(shape, _weights(shape[0]), skip, relu)


@pytest.mark.parametrize("start", [0, 16, 32])
def test_whole_groups_of_images_that_do_not_count(start):
    """As in the last batch of a client, most of which may be fillers."""
    weights = torch.full((48,), 1 / 16, dtype=torch.float64, device=_DEVICE)
    weights[:start], weights[start + 16 :] = 0, 0
    _compare_with_the_formula((48, 10, 8, 8), weights, skip=False, relu=False)


def _compare_with_the_formula(shape, weights, skip, relu):
    inputs = _inputs(shape, torch.float64, skip)

    def ours(leaves, running, relu) -> Tensor:
        x, weight, bias, *skip = leaves
        options = {"training": True, "skip": skip[0] if skip else None, "relu": relu, "weights": weights}
        return _kernels.batch_norm(x, *running, weight, bias, **options)

    def formula(leaves, running, relu) -> Tensor:
        x, weight, bias, *skip = leaves
        z = sum(skip, weighted_batch_norm(x, weights, *running, weight, bias))
        return z.relu() if relu else z

    found, expected = _results(ours, *inputs, relu), _results(formula, *inputs, relu)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-10, msg=name)


@_RELU
def test_equal_weights_are_the_ordinary_layer(relu):
    leaves, running, dz = _inputs((6, 20, 8, 8), torch.float64, skip=True)
    weights = torch.full((6,), 1 / 6, dtype=torch.float64, device=_DEVICE)

    def weighted(leaves, running, relu) -> Tensor:
        x, weight, bias, skip = leaves
        options = {"training": True, "skip": skip, "relu": relu, "weights": weights}
        return _kernels.batch_norm(x, *running, weight, bias, **options)

    found = _results(weighted, leaves, running, dz, relu)
    for name, value in _results(_ours, leaves, running, dz, relu).items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10, msg=name)


@_RELU
@_SKIP
@pytest.mark.parametrize("shape", [(2, 20, 8, 8), (3, 5, 1, 1), (1, 5, 4, 4), (1, 5, 1, 1)])
def test_images_of_weight_zero_are_as_if_they_were_not_there(shape, skip, relu):
    """Fillers after the images that are there, of which there may be one alone."""
    there, (leaves, running, dz) = shape[0], _inputs((7, *shape[1:]), torch.float64, skip)
    weights = (torch.arange(7, device=_DEVICE) < there).double() / there
    dz[there:] = 0  # no loss reads them

    def weighted(leaves, running, relu) -> Tensor:
        x, weight, bias, *skip = leaves
        options = {"skip": skip[0] if skip else None, "relu": relu, "weights": weights}
        return _kernels.batch_norm(x, *running, weight, bias, training=True, **options)

    found = _results(weighted, leaves, running, dz, relu)
    cut = [leaf[:there] if leaf.dim() == 4 else leaf for leaf in leaves]
    for name, value in _results(_ours, cut, running, dz[:there], relu).items():
        own = found[name][:there] if value.dim() == 4 else found[name]
        torch.testing.assert_close(own, value, rtol=1e-10, atol=1e-10, msg=name)
    assert not found["dx"][there:].any()
