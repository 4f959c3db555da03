from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vhl.errors import VHLError
from vhl.models.cnn import CNN
from vhl.models.files import cut_head, fill, head_names, load_start, read_tensors
from vhl.models.resnet import ResNet18, ResNet34

_HEAD = ("head.weight", "head.bias")


def _network(outputs: int, seed: int, model=None) -> nn.Module:
    torch.manual_seed(seed)
    network = (model or CNN(width=2)).build(outputs, 1, (8, 8))
    for buffer in network.buffers():
        buffer.uniform_(0.5, 1.5)
    return network


def _state(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


class _Odd(nn.Module):
    """A classifier of unusual shape and name, and a batch counter."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3))
        self.prototypes = nn.Parameter(torch.randn(3, classes, 2))
        self.register_buffer("prior", torch.rand(classes))


def test_the_head_is_what_changes_with_the_classes():
    assert set(head_names(lambda outputs: CNN(width=2).build(outputs, 1, (8, 8)))) == set(_HEAD)
    assert set(head_names(_Odd)) == {"prototypes", "prior"}
    assert head_names(lambda outputs: nn.Linear(2, 2)) == ()


def test_a_start_of_the_same_width_is_taken_whole(tmp_path: Path):
    saved, network = _network(5, 0), _network(5, 1)
    save_file(_state(saved), tmp_path / "start.safetensors")
    load_start(network, tmp_path / "start.safetensors", _HEAD)
    assert all(torch.equal(tensor, saved.state_dict()[name]) for name, tensor in network.state_dict().items())


def test_a_head_of_another_width_stays_fresh(tmp_path: Path):
    saved, network = _network(5, 0), _network(9, 1)
    fresh = _state(network)
    save_file(_state(saved), tmp_path / "start.safetensors")
    load_start(network, tmp_path / "start.safetensors", _HEAD)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, fresh[name] if name in _HEAD else saved.state_dict()[name])


def test_a_start_of_another_shape_is_refused(tmp_path):
    file = tmp_path / "start.safetensors"
    save_file(_state(_network(5, 0, CNN(width=3))), file)
    with pytest.raises(VHLError) as caught:
        load_start(_network(5, 1), file, _HEAD)
    message = str(caught.value)
    assert message.startswith(f"model.start = {str(file)!r} does not fit: stages.0.0.weight is ")
    assert "(2, 1, 3, 3) in the network and (3, 1, 3, 3) in the file" in message


@pytest.mark.parametrize("missing", ["network", "file"])
def test_a_start_from_a_network_of_another_depth_is_refused(tmp_path, missing):
    # every tensor of the shallower network is in the deeper one too, with the same shape
    shallow, deep = ResNet18(width=2), ResNet34(width=2)
    start, model = (deep, shallow) if missing == "network" else (shallow, deep)
    save_file(_state(_network(5, 0, start)), tmp_path / "start.safetensors")
    with pytest.raises(VHLError, match=f"absent in the {missing}"):
        load_start(_network(5, 1, model), tmp_path / "start.safetensors", _HEAD)


def test_batch_counters_need_not_be_in_the_file():
    saved, network = _Odd(4), _Odd(4)
    tensors = {name: t for name, t in saved.state_dict().items() if t.is_floating_point()}
    fill(network, tensors, "it")
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in tensors.items())
    fill(
        nn.Linear(2, 2), {**nn.Linear(2, 2).state_dict(), "steps": torch.tensor(3)}, "it"
    )  # nor in the network


def test_cutting_keeps_the_first_classes():
    tensors = _state(_Odd(7))
    cut = cut_head(tensors, ("prototypes", "prior"), _Odd, 4)
    assert cut["prototypes"].tolist() == tensors["prototypes"].numpy()[:, :4].tolist()
    assert cut["prior"].tolist() == tensors["prior"].numpy()[:4].tolist()
    assert cut["prototypes"].is_contiguous()
    assert torch.equal(cut["body.0.weight"], tensors["body.0.weight"])
    assert tensors["prior"].shape == (7,)


def test_tensors_are_read_with_their_metadata(tmp_path: Path):
    save_file({"a": torch.arange(3.0)}, tmp_path / "some.safetensors", {"key": "value"})
    tensors, metadata = read_tensors(tmp_path / "some.safetensors")
    assert tensors["a"].tolist() == [0, 1, 2] and metadata == {"key": "value"}
    save_file({"a": torch.arange(3.0)}, tmp_path / "some.safetensors")
    assert read_tensors(tmp_path / "some.safetensors")[1] == {}


@pytest.mark.parametrize("content", [None, b"", b"not tensors", b"\xff" * 64, "cut", "folder"])
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    file = tmp_path / "some.safetensors"
    if content == "folder":
        file.mkdir()
    elif content == "cut":
        save_file({"a": torch.zeros(100)}, file)
        file.write_bytes(file.read_bytes()[:-7])
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(VHLError) as caught:
        read_tensors(file)
    message = str(caught.value)
    assert str(file) in message and "`vhl export RUN`" in message and "\n" not in message
