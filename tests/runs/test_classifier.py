from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from vhl.data.sources.folder import Folder
from vhl.errors import VHLError
from vhl.models.cnn import CNN
from vhl.models.files import cut_head
from vhl.runs.classifier import Signature, classifier, load_model, save_classifier

_MODEL = CNN(width=3)
_SIGNATURE = Signature(
    model=_MODEL.model_dump(mode="json", exclude_none=True),
    classes=("ant", "bee", "cat"),
    channels=3,
    size=(8, 8),
    mean=(0.4, 0.5, 0.6),
    std=(0.2, 0.25, 0.3),
)


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (300, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def network(pixels) -> nn.Module:
    """A network with two virtual outputs after the natural ones; its answers differ between the images."""
    torch.manual_seed(0)
    network = _MODEL.build(5, 3, (8, 8)).eval()
    for buffer in network.buffers():
        buffer.uniform_(0.5, 1.5)
    with torch.no_grad():
        network.head.bias -= network(_normalise(pixels))[1].mean(0)
    return network


@pytest.fixture
def tensors(network) -> dict[str, Tensor]:
    """Its tensors without the virtual outputs."""
    return cut_head(
        network.state_dict(), ("head.weight", "head.bias"), lambda n: _MODEL.build(n, 3, (8, 8)), 3
    )


def _normalise(pixels: np.ndarray) -> Tensor:
    normalised = (pixels / 255 - np.array(_SIGNATURE.mean)) / np.array(_SIGNATURE.std)
    return torch.from_numpy(normalised.transpose(0, 3, 1, 2)).float()


def test_a_saved_model_predicts_as_the_network_among_natural_classes(tmp_path, network, tensors, pixels):
    save_classifier(tmp_path / "model.safetensors", tensors, _SIGNATURE)
    loaded = load_model(tmp_path / "model.safetensors")
    with torch.no_grad():
        logits = loaded(torch.from_numpy(pixels))
        every = network(_normalise(pixels))[1]
    expected = every[:, :3]
    assert loaded.signature == _SIGNATURE and loaded.classes == ("ant", "bee", "cat")
    assert torch.allclose(logits, expected, atol=1e-5)
    best, second = expected.topk(2).values.T
    sure = best - second > 1e-4  # no tie that rounding decides
    assert torch.equal(logits.argmax(1)[sure], expected.argmax(1)[sure])
    # all natural classes are predicted, some where a virtual output is the largest of all
    assert expected.argmax(1)[sure].unique().tolist() == [0, 1, 2]
    assert (every.argmax(1)[sure] >= 3).any()


def test_a_path_may_be_text(tmp_path, tensors):
    save_classifier(tmp_path / "model.safetensors", tensors, _SIGNATURE)
    assert load_model(str(tmp_path / "model.safetensors")).classes == _SIGNATURE.classes


def test_probabilities_of_files_are_those_of_their_pixels(tmp_path, network, tensors, pixels):
    files = [tmp_path / f"{number}.png" for number in range(300)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    with torch.no_grad():
        logits = network(_normalise(pixels))[1][:, :3].double().numpy()
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = classifier(tensors, _SIGNATURE).probabilities(files)
    assert found.numpy() == pytest.approx(expected, abs=1e-5)


def test_normalisation_moves_with_the_network(tensors):
    model = classifier(tensors, _SIGNATURE).to("meta")
    assert model(torch.zeros(2, 8, 8, 3, dtype=torch.uint8, device="meta")).device.type == "meta"
    assert not any(name.startswith("_") for name in model.state_dict())


def _write_odd_images(folder: Path) -> None:
    """Images whose pixels depend on how they are decoded: transparent, 16 bits, turned, large."""
    rng = np.random.default_rng(1)
    colour = rng.integers(0, 256, (20, 30, 4), dtype=np.uint8)
    Image.fromarray(colour).save(folder / "transparent.png")
    Image.fromarray(rng.integers(0, 65_536, (20, 30), dtype=np.uint16)).save(folder / "sixteen.png")
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    Image.fromarray(colour[..., :3]).save(folder / "turned.jpg", exif=turned)
    Image.fromarray(rng.integers(0, 256, (500, 400, 3), dtype=np.uint8)).save(folder / "large.jpg")
    Image.fromarray(colour[..., 0]).save(folder / "grey.png")


@pytest.mark.parametrize("channels", [1, 3])
def test_files_are_decoded_as_for_training(tmp_path, tensors, channels):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        _write_odd_images(tmp_path / name)
    trained_on = Folder(path=str(tmp_path), size=8, channels=channels, test_share=0.2).load(tmp_path)
    network = _MODEL.build(3, channels, (8, 8))
    model = classifier(network.state_dict(), replace(_SIGNATURE, channels=channels))
    prepared = model.prepare(sorted(tmp_path.glob("ant/*")))
    assert prepared.shape == (5, 8, 8, channels) and prepared.dtype == np.uint8
    known = {image.tobytes() for part in (trained_on.train, trained_on.test) for image in part.images}
    assert all(image.tobytes() in known for image in prepared)


def test_images_that_are_not_square_are_brought_to_the_networks_shape(tmp_path):
    stripes = np.zeros((40, 40), np.uint8)
    stripes[:20] = 200  # bright above, dark below
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    signature = replace(_SIGNATURE, channels=1, size=(4, 8), mean=(0.5,), std=(0.5,))
    model = classifier(_MODEL.build(3, 1, (4, 8)).state_dict(), signature)
    prepared = model.prepare([tmp_path / "stripes.png"])[0, :, :, 0]
    assert prepared.shape == (4, 8)
    assert (prepared == prepared[:, :1]).all()
    assert prepared[0, 0] > 190 and prepared[-1, 0] < 10


@pytest.mark.parametrize("content", [None, b"no image"])
def test_a_file_that_is_no_image_is_named(tmp_path, tensors, content):
    file = tmp_path / "some.png"
    if content:
        file.write_bytes(content)
    with pytest.raises(VHLError) as caught:
        classifier(tensors, _SIGNATURE).probabilities([file])
    assert str(file) in str(caught.value) and "replace or remove it" in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"other": "x"},
        {"vhl": "{"},
        {"vhl": "[]"},
        {"vhl": "{}"},
        {"vhl": '{"model": "cnn", "classes": 3, "channels": 1, "size": 1, "mean": 1, "std": 1}'},
    ],
)
def test_a_file_that_does_not_describe_its_model_is_refused(tmp_path, tensors, metadata):
    save_file(tensors, tmp_path / "model.safetensors", metadata)
    with pytest.raises(VHLError, match="does not say what model it holds") as caught:
        load_model(tmp_path / "model.safetensors")
    assert str(tmp_path / "model.safetensors") in str(caught.value)


@pytest.mark.parametrize("damage", ["absent", "shape", "surplus"])
def test_tensors_that_do_not_fit_the_model_are_refused(tmp_path, tensors, damage):
    name = "stages.1.1.weight"
    if damage == "absent":
        del tensors[name]
    elif damage == "shape":
        tensors[name] = torch.zeros(2, 2)
    else:
        name = "stages.9.weight"
        tensors[name] = torch.zeros(1)
    save_classifier(tmp_path / "model.safetensors", tensors, _SIGNATURE)
    with pytest.raises(VHLError, match=rf"model = cnn does not fit: {name} is "):
        load_model(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "resnet19"}, "There is no model called 'resnet19'; did you mean 'resnet"),
        ({"name": "gone.py:build"}, "gone.py does not exist"),
        ({"name": "cnn", "widht": 3}, "model = cnn has no option 'widht'; did you mean 'width'?"),
    ],
)
def test_a_model_that_cannot_be_made_is_named(tmp_path, tensors, model, message):
    save_file(
        tensors, tmp_path / "model.safetensors", {"vhl": json.dumps({**vars(_SIGNATURE), "model": model})}
    )
    with pytest.raises(VHLError) as caught:
        load_model(tmp_path / "model.safetensors")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [None, b"no tensors"])
def test_what_is_no_model_file_is_refused(tmp_path, content):
    file = tmp_path / "model.safetensors"
    if content:
        file.write_bytes(content)
    with pytest.raises(VHLError, match="is no readable safetensors file") as caught:
        load_model(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 16, 16, 3), (8, 8, 3)])
def test_images_of_another_shape_are_refused(shape, tensors, complains):
    with complains(f"Images are {shape}", "(N, 8, 8, 3)", "prepare(files)"):
        classifier(tensors, _SIGNATURE)(torch.zeros(shape))
