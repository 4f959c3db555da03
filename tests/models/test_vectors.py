from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vhl.models.cnn import CNN
from vhl.models.vectors import FlatModel

CPU = torch.device("cpu")


@pytest.fixture
def network():
    torch.manual_seed(3)
    return CNN(width=4).build(5, 2, (8, 8))


@pytest.fixture
def images():
    return torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def test_module_computes_what_it_did_before_it_was_bound(network, images):
    plain = copy.deepcopy(network).eval()
    model = FlatModel(network, CPU)
    assert torch.allclose(model.module.eval()(images)[1], plain(images)[1], atol=1e-6)


def test_tensors_are_views_of_the_vectors(network):
    model = FlatModel(network, CPU)
    model.parameters.fill_(3.0)
    model.buffers.fill_(4.0)
    assert all(bool((parameter == 3).all()) for parameter in model.module.parameters())
    assert all(bool((buffer == 4).all()) for buffer in model.module.buffers())
    with torch.no_grad():
        model.module.head.bias.fill_(5.0)
    assert int((model.parameters == 5).sum()) == 5


def test_running_statistics_are_views_too(network, images):
    model = FlatModel(network, CPU)
    before = model.buffers.clone()
    model.module.train()(images)
    assert not model.buffers.equal(before)
    assert model.buffers[:4].equal(dict(model.module.named_buffers())["stages.0.1.running_mean"])


def test_segments_start_at_128_bytes_and_do_not_overlap(network):
    layout = FlatModel(network, CPU).layout
    # conv 4×2×3×3, norm 4 + 4, conv 8×4×3×3, norm 8 + 8, conv 16×8×3×3, norm 16 + 16, head 5×16 + 5
    sizes = [72, 4, 4, 288, 8, 8, 1152, 16, 16, 80, 5]
    assert [segment.shape.numel() for segment in layout.parameters] == sizes
    offsets = [segment.offset for segment in layout.parameters]
    assert offsets == [0, 96, 128, 160, 448, 480, 512, 1664, 1696, 1728, 1824]
    assert layout.parameter_count == sum(sizes)
    assert layout.buffer_count == 2 * (4 + 8 + 16)


def test_convolution_weights_lie_in_channels_last_order(network):
    weight = network.stages[1][1].weight.detach().clone()
    model = FlatModel(network, CPU)
    assert model.module.stages[1][1].weight.is_contiguous(memory_format=torch.channels_last)
    assert model.parameters[160:448].equal(weight.permute(0, 2, 3, 1).flatten())  # by hand: O, H, W, I
    assert model.module.stages[1][1].weight.detach().equal(weight)


def test_pack_and_unpack_are_inverse(network):
    tensors = {name: torch.randn(tensor.shape) for name, tensor in network.state_dict().items()}
    model = FlatModel(network, CPU)
    vectors = model.layout.pack(tensors)
    unpacked = model.layout.unpack(*vectors)
    assert set(unpacked) == set(tensors)
    assert all(unpacked[name].equal(tensors[name]) for name in tensors)
    assert all(tensor.is_contiguous() for tensor in unpacked.values())
    vectors[0].zero_()  # copies, not views
    assert all(unpacked[name].equal(tensors[name]) for name in tensors)


def test_load_copies(network):
    model = FlatModel(network, CPU)
    parameters, buffers = torch.rand_like(model.parameters), torch.rand_like(model.buffers)
    model.load(parameters, buffers)
    assert model.module.head.bias.detach().equal(parameters[1824:1829])
    model.parameters.zero_()
    assert parameters.count_nonzero() > 0


def test_gradient_is_that_of_backward(network, images):
    plain = copy.deepcopy(network).double()
    model = FlatModel(network, CPU, torch.float64)
    model.gradient.fill_(7.0)  # stale: it must be replaced, not added to
    for module in (plain, model.module):
        loss = module.train()(images.double())[1].square().mean()
        loss.backward() if module is plain else model.differentiate(loss)
    for segment, parameter in zip(model.layout.parameters, plain.parameters(), strict=True):
        assert torch.allclose(segment.view(model.gradient), parameter.grad, rtol=1e-10, atol=1e-12)


def test_gradient_of_an_unused_parameter_is_zero(network, images):
    model = FlatModel(network, CPU)
    model.gradient.fill_(7.0)
    features, _ = model.module(images)
    model.differentiate(features["stage1"].sum())
    used = {s.name for s in model.layout.parameters if s.view(model.gradient).any()}
    assert used == {"stages.0.0.weight", "stages.0.1.weight", "stages.0.1.bias"}


class _Odd(nn.Module):
    """Tensors that a user's own network may have beside its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(3))  # whole numbers, and the first of the state
        self.register_buffer("table", torch.ones(3), persistent=False)
        self.register_buffer("average", torch.full((2,), 0.5))
        self.frozen = nn.Linear(3, 3, bias=False).requires_grad_(False)
        self.frozen.weight.copy_(2 * torch.eye(3))
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(self.frozen(x * self.table))


def test_own_network_with_other_tensors():
    module = _Odd()
    plain = copy.deepcopy(module)
    model = FlatModel(module, CPU)
    assert model.parameters.dtype == model.buffers.dtype == torch.float32
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.allclose(model.module(x), plain(x))
    model.differentiate(model.module(x).sum())
    weight = next(segment for segment in model.layout.parameters if segment.name == "layer.weight")
    assert weight.view(model.gradient).tolist() == [[2, 4, 6], [2, 4, 6]]  # the frozen factor 2 times x
    tensors = model.layout.unpack(model.parameters, model.buffers)
    assert set(tensors) == {"layer.weight", "layer.bias", "average", "frozen.weight"}
    assert tensors["average"].tolist() == [0.5, 0.5] and tensors["frozen.weight"].equal(2 * torch.eye(3))


def test_frozen_parameter_does_not_train():
    """Weight decay and momentum work on the vector of parameters: a frozen one must not lie there."""
    model = FlatModel(_Odd(), CPU)
    assert model.layout.parameter_count == 3 * 2 + 2
    model.parameters.zero_()
    assert model.module.frozen.weight.equal(2 * torch.eye(3))


def test_tied_weights_are_one_segment():
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    model = FlatModel(module, CPU)
    assert model.layout.parameter_count == 9
    model.parameters.fill_(1.0)
    model.differentiate(module(torch.ones(1, 3)).sum())
    # y = Σ WWx: the derivative of W_ij is (Wᵀ1)_i (x)_j + (1)_i (Wx)_j = 3 + 3
    assert model.gradient[:9].tolist() == [6.0] * 9
