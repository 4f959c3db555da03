"""Models whose layers see their weights in a shorter type."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from vhl.models.cnn import CNN
from vhl.models.layers.network import Layers, Network
from vhl.models.resnet import ResNet8, ResNet50
from vhl.models.vectors import FlatModel

CPU = torch.device("cpu")
SHORT = torch.bfloat16
MODELS = [CNN(width=4), CNN(width=4, norm="group"), ResNet8(width=4), ResNet50(width=4)]


def build(model):
    torch.manual_seed(3)
    return model.build(5, 2, (8, 8))


def lowered(module, dtype=torch.float32, shorter=SHORT):
    return FlatModel(module, CPU, dtype, shorter)


@pytest.fixture
def images():
    return torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1))


# --- which tensors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_convolutions_and_the_head_are_lowered_and_nothing_else(model):
    module = build(model)
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    expected = {id(parameter) for layer in layers for parameter in layer.parameters()}
    bound = lowered(module)
    short = {id(p) for p in bound.module.parameters() if p.dtype == SHORT}
    assert short == expected and bound.module.head.bias.dtype == SHORT
    rest = [p for p in bound.module.parameters() if id(p) not in short]
    assert rest and all(p.dtype == torch.float32 for p in (*rest, *bound.module.buffers()))
    assert bound.parameters.dtype == bound.buffers.dtype == bound.gradient.dtype == torch.float32


class _Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 5))

    def forward(self, images):
        return {"last": images}, self.layers(images)


@pytest.mark.parametrize(
    ("module", "dtype", "shorter"),
    [
        (_Foreign(), torch.float32, SHORT),  # it may use its weights in any type
        (build(CNN(width=4)), torch.float32, None),
        (build(CNN(width=4)), torch.float32, torch.float32),
        (build(CNN(width=4)), torch.float64, torch.float64),
    ],
)
def test_where_nothing_is_lowered(module, dtype, shorter):
    bound = lowered(module, dtype, shorter)
    assert bound.lowered is None and {p.dtype for p in bound.module.parameters()} == {dtype}
    bound.parameters.fill_(3)
    assert all(bool((p == 3).all()) for p in bound.module.parameters())  # views, as without it


def test_a_frozen_layer_is_a_buffer_in_full_precision():
    module = build(CNN(width=4))
    module.stages[0].requires_grad_(False)
    bound = lowered(module)
    assert module.stages[0][0].weight.dtype == torch.float32
    assert module.stages[1][1].weight.dtype == SHORT
    bound.buffers.fill_(3)
    assert bool((module.stages[0][0].weight == 3).all())


# --- what the layers see -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_binding_loses_no_digit(model):
    before = {name: tensor.clone() for name, tensor in build(model).state_dict().items()}
    bound = lowered(build(model))
    after = bound.layout.unpack(bound.parameters, bound.buffers)
    assert all(after[name].equal(tensor) for name, tensor in before.items())
    assert bound.lowered.equal(bound.parameters.to(SHORT))
    for name, parameter in bound.module.named_parameters():
        assert parameter.detach().equal(before[name].to(parameter.dtype)), name


def test_load_is_seen_by_every_layer():
    bound, other = lowered(build(CNN(width=4))), build(CNN(width=4))
    for tensor in other.state_dict().values():
        tensor.uniform_(0.5, 2)
    bound.load(*bound.layout.pack(other.state_dict()))
    for (name, found), wanted in zip(bound.module.named_parameters(), other.parameters(), strict=True):
        assert found.detach().equal(wanted.detach().to(found.dtype)), name
    for found, wanted in zip(bound.module.buffers(), other.buffers(), strict=True):
        assert found.equal(wanted)
    exact = bound.layout.views(bound.parameters, bound.buffers)["head.weight"]
    assert exact.equal(other.head.weight.detach())  # and is kept to the last digit


def test_refresh_shows_the_layers_what_the_parameters_are_now():
    module = build(CNN(width=4))
    bound = lowered(module)
    before = module.head.weight.detach().clone()
    bound.parameters.fill_(3)
    assert module.head.weight.detach().equal(before)
    assert bool((module.stages[0][1].weight == 3).all())  # normalisation needs no copy
    bound.refresh()
    assert bool((module.head.weight == 3).all()) and bool((bound.lowered == 3).all())
    place = module.head.weight.data_ptr()
    bound.refresh()
    assert module.head.weight.data_ptr() == place  # a captured step reads there


def test_steps_too_small_for_the_shorter_type_add_up():
    """Next to 1 it has steps of 2⁻⁷ (above): of eight steps of 2⁻¹⁰ each would be lost."""
    module = build(CNN(width=4))
    bound = lowered(module)
    bound.parameters.fill_(1)
    for _ in range(8):
        bound.parameters.add_(2**-10)
        bound.refresh()
    assert module.head.bias.tolist() == [1 + 2**-7] * 5


def test_forward_is_that_of_the_lowered_layers(images):
    plain = lower_by_hand(build(ResNet8(width=4)))
    bound = lowered(build(ResNet8(width=4)))
    with torch.autocast("cpu", SHORT):
        found, expected = bound.module.eval()(images)[1], plain.eval()(images)[1]
    assert found.dtype == SHORT
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


# --- the gradient --------------------------------------------------------------------------------------


def lower_by_hand(module):
    """The same network with its convolutions and its head in the shorter type."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.to(SHORT)
    return module


@pytest.mark.parametrize("model", MODELS)
def test_gradient_is_that_of_backward(model, images):
    plain, bound = lower_by_hand(build(model)), lowered(build(model))
    bound.gradient.fill_(7)  # stale: it must be replaced
    for module in (plain, bound.module):
        with torch.autocast("cpu", SHORT):
            _, logits = module.train()(images)
        loss = logits.float().square().mean()
        loss.backward() if module is plain else bound.differentiate(loss)
    expected, scale = dict(plain.named_parameters()), 0.0
    for segment in bound.layout.parameters:
        found, wanted = segment.view(bound.gradient), expected[segment.name].grad.float()
        # in 8 bits the order of sums matters; in a wrong order of elements nothing would agree
        assert float((found - wanted).norm()) < 0.25 * float(wanted.norm()) + 1e-3, segment.name
        scale = max(scale, float(wanted.norm()))
    assert scale > 0.1


def numbered(shape):
    """Different whole numbers that the shorter type holds exactly (they are below 256)."""
    count = torch.Size(shape).numel()
    assert count < 256
    return torch.arange(1.0, count + 1).reshape(shape)


ORDERS = {
    "rows": lambda tensor: tensor.contiguous(),
    "channels last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
    "outputs last": lambda tensor: tensor.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "every other": lambda tensor: torch.stack([tensor, -tensor], -1)[..., 0],
    "the same everywhere": lambda tensor: tensor[:1, :1, :1, :1].expand(tensor.shape),
}


class _Given(torch.autograd.Function):
    """A loss whose gradient is a given tensor, in the order in which that lies in memory."""

    @staticmethod
    def forward(ctx, weight, gradient):
        ctx.gradient = gradient
        return weight.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient, None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("shorter", [SHORT, None])
def test_gradients_in_any_order_land_in_channels_last_order(shorter, kernel, order):
    make = Layers("batch", "torch")
    stage = nn.Sequential(make.convolution(4, 6, kernel), make.normalization(6))
    module = Network(nn.Identity(), [stage], 6, 5)
    bound = lowered(module, shorter=shorter)
    weight, norm = stage[0].weight, stage[1].weight
    gradient = ORDERS[order](numbered((6, 4, kernel, kernel)).to(weight.dtype))
    assert gradient.is_contiguous() == (order == "rows") or kernel == 1
    loss = _Given.apply(weight, gradient) + (norm * numbered((6,))).sum() + module.head.bias.float().sum()
    bound.differentiate(loss)
    found = {segment.name: segment.flat(bound.gradient) for segment in bound.layout.parameters}
    places = itertools.product(range(6), range(kernel), range(kernel), range(4))
    by_hand = [float(gradient[output, input_, y, x]) for output, y, x, input_ in places]
    assert found["stages.0.0.weight"].tolist() == by_hand
    assert found["stages.0.1.weight"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found["head.bias"].tolist() == [1] * 5
    assert not found["head.weight"].any() and not found["stages.0.1.bias"].any()  # unused: zero


def test_a_linear_layer_used_transposed():
    """Its gradient comes with its rows and columns exchanged in memory."""
    module = Network(nn.Identity(), [nn.Identity()], 6, 5)
    bound = lowered(module)
    numbers = numbered((6, 5))
    bound.differentiate((module.head.weight.t().float() * numbers).sum())
    weight = bound.layout.parameters[0].view(bound.gradient)
    assert weight.tolist() == numbers.t().tolist()


def test_a_step_is_taken_in_full_precision(images):
    """One step of gradient descent on the vectors is the step on a copy of the weights in 32 bits."""
    bound = lowered(build(CNN(width=4)))
    start = bound.parameters.clone()
    with torch.autocast("cpu", SHORT):
        _, logits = bound.module(images)
    bound.differentiate(logits.float().square().mean())
    bound.parameters.add_(bound.gradient, alpha=-1e-4)
    bound.refresh()
    moved = bound.parameters - start
    assert torch.allclose(moved, -1e-4 * bound.gradient, atol=1e-7) and bool(moved.any())
    share = (bound.lowered == start.to(SHORT)).float().mean()
    assert share > 0.9  # most layers see no difference yet, and it is not lost
