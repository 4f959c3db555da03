"""A trained model to use: it takes images as they are and names their classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vhl.config.registry import build
from vhl.data.decode import decode_all
from vhl.data.sources.base import set_channels
from vhl.errors import VHLError
from vhl.files import write_tensors
from vhl.models.base import Model
from vhl.models.files import fill, read_tensors


@dataclass(frozen=True)
class Signature:
    """What a model was made for, so that its file says all that is needed to use it."""

    model: dict[str, Any]
    classes: tuple[str, ...]
    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Classifier(nn.Module):
    """A network with its normalisation and its class names; no virtual outputs."""

    _mean: Tensor
    _std: Tensor

    def __init__(self, network: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.network = network.eval()
        self.signature = signature
        self.register_buffer("_mean", torch.tensor(signature.mean), persistent=False)
        self.register_buffer("_std", torch.tensor(signature.std), persistent=False)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.signature.classes

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits of images (N, H, W, C), pixels from 0 to 255."""
        height, width = self.signature.size
        if pixels.shape[1:] != (height, width, self.signature.channels):
            raise VHLError(
                f"Images are {tuple(pixels.shape)}, but the model takes (N, {height}, {width}, "
                f"{self.signature.channels}) with pixels from 0 to 255; prepare(files) makes them of files."
            )
        images = (pixels.float() / 255 - self._mean) / self._std
        logits: Tensor = self.network(images.permute(0, 3, 1, 2))[1]
        return logits

    @torch.no_grad()
    def probabilities(self, files: Sequence[Path]) -> Tensor:
        """Class probabilities of image files, one row a file."""
        pixels = torch.from_numpy(self.prepare(files)).to(self._mean.device)
        return torch.cat([self(part).softmax(1) for part in torch.split(pixels, 256)])

    def prepare(self, files: Sequence[Path]) -> np.ndarray:
        """Decode image files as for training, to the size and channels that the network was trained on."""
        height, width = self.signature.size
        images = decode_all(
            Path(),
            [str(file) for file in files],
            lambda name: Path(name).read_bytes(),
            max(height, width),
            "replace or remove it",
        )
        if height != width:
            narrow = [Image.fromarray(i).resize((width, height), Image.Resampling.BILINEAR) for i in images]
            images = np.stack([np.asarray(image) for image in narrow])
        return set_channels(images, self.signature.channels)


def save_classifier(file: Path, tensors: dict[str, Tensor], signature: Signature) -> None:
    """Write a safetensors file that :func:`load_model` reads."""
    write_tensors(file, tensors, {"vhl": json.dumps(asdict(signature))})


def load_model(file: Path | str) -> Classifier:
    """The classifier in a file that ``vhl export`` wrote."""
    tensors, metadata = read_tensors(Path(file))
    try:
        signature = _read_signature(metadata.get("vhl", ""))
    except (ValueError, KeyError, TypeError):
        raise VHLError(
            f"{file} does not say what model it holds; `vhl export RUN` writes one that does."
        ) from None
    return classifier(tensors, signature)


def classifier(tensors: dict[str, Tensor], signature: Signature) -> Classifier:
    """A classifier from its tensors and what they were made for."""
    model = build(Model, "model", signature.model)
    network = model.build(len(signature.classes), signature.channels, signature.size)
    fill(network, tensors, f"model = {model.name}")
    return Classifier(network, signature)


def _read_signature(text: str) -> Signature:
    fields = json.loads(text)
    lists = {key: tuple(fields[key]) for key in ("classes", "size", "mean", "std")}
    return Signature(model=fields["model"], channels=fields["channels"], **lists)
