"""VHL in a training loop of your own: the virtual set and the loss, whatever federates them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vhl.chance import Purpose, normals, words
from vhl.config.registry import build
from vhl.data.sources.base import data_directory
from vhl.errors import VHLError
from vhl.objectives.base import Batch, Objective, full_precision
from vhl.training.streams import Passes, Stream
from vhl.virtual.base import Generator
from vhl.virtual.sets import virtual_set


class VirtualHomogeneity:
    """A loss to call in place of cross-entropy, for a model with :attr:`outputs` outputs.

    Every site makes one with the same arguments, and so has the same virtual set: nothing has to be sent.

    ``classes`` are the natural ones; ``size``, (height, width), and ``channels`` are those of the images that
    the model is given. ``virtual`` and ``objective`` are what an experiment's are: a name, or a table such as
    ``{"name": "noise", "per_class": 500}``; but pretraining (``vftl``), mosaics and a share of batch-norm
    statistics (``vhl-light``) take more than a loss. The virtual set is made when it is first needed, and
    kept in the data directory for the next time.

    ``head`` names the model's last layer, which makes logits of features: "fc", or "classifier.2". The model
    itself stays as it is, but for that layer's width. Without ``head``, the model returns (features, logits);
    under ``torch.compile`` it must, for compiled layers cannot be watched. Features are a tensor with one row
    an image, or several such by name, of which ``objective.tap`` is one.

    Natural images come as your own code has normalised them, to a mean of about 0 and a deviation of about 1.
    Virtual images become (pixel / 255 − 0.5) / 0.25, are cropped at random after padding by an eighth of
    their height, and half of them are flipped; ``virtual`` may set another ``mean``, ``std``, ``crop`` or
    ``flip``.

    >>> vhl = VirtualHomogeneity(
    ...     classes=3, size=(4, 4), channels=1, virtual={"name": "noise", "per_class": 2}, head="1"
    ... )
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, vhl.outputs))
    >>> images, labels = torch.randn(5, 1, 4, 4), torch.tensor([0, 0, 1, 2, 2])
    >>> vhl.loss(model, images, labels).backward()
    >>> predicted = model(images)[:, : vhl.classes].argmax(1)
    """

    def __init__(
        self,
        *,
        classes: int,
        size: tuple[int, int] | int,
        channels: int,
        virtual: str | Mapping[str, Any] | Generator = "noise",
        objective: str | Mapping[str, Any] | Objective = "vhl",
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        generator = build(Generator, "virtual", virtual, "noise")
        chosen = build(Objective, "objective", objective, "vhl")
        if chosen.pretraining is not None:
            raise VHLError(
                f"objective = {chosen.name} trains before the first round, which a loss cannot do; "
                "choose another objective."
            )
        joining = chosen.virtual_images(1)
        if joining is not None and (joining.tiles > 1 or joining.share is not None):
            raise VHLError(
                f"objective = {chosen.name}: mosaics and shares of batch-norm statistics are for networks of "
                "experiments; here take objective = vhl, with a smaller virtual_batch to compute less."
            )
        self.classes, self.head, self.seed = classes, head, seed
        self.generator, self.objective = generator, chosen
        self.shape = (size, size, channels) if isinstance(size, int) else (*size, channels)
        if classes < 2 or min(self.shape) < 1:
            raise VHLError(
                f"There must be two classes and a pixel at least, not classes = {classes}, size = {size}, "
                f"channels = {channels}."
            )
        self._streams: dict[torch.device, Stream] = {}
        self._start(secrets.randbits(32), 0, 0)

    @property
    def virtual_classes(self) -> int:
        return self.generator.classes or self.classes

    @property
    def outputs(self) -> int:
        """How wide the model's last layer must be; the first ``classes`` outputs are the natural classes."""
        return self.objective.outputs(self.classes, self.virtual_classes)

    def begin(self, round_: int, client: int) -> None:
        """Choose virtual images by the seed, this round and this client from now on.

        Only to repeat a run exactly: otherwise each process makes choices of its own.
        """
        self._start(self.seed, round_, client)

    def _start(self, seed: int, round_: int, client: int) -> None:
        self._place = seed, round_, client
        self._passes: dict[torch.device, Passes] = {}
        self._drawn = self._steps = 0

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """The objective on a natural batch (N, C, H, W) and a virtual one, in one pass through the model."""
        return torch.stack(list(self.terms(model, images, labels).values())).sum()

    def terms(self, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The parts of :meth:`loss` by name, their weights included, as for a log."""
        self._check_input(images, labels)
        labels = labels.long()
        virtual_labels, joining = None, self.objective.virtual_images(len(images))
        if joining is not None:
            virtual, virtual_labels = self._draw(joining.rows, images.device)
            images = torch.cat([images, virtual.to(images.dtype)])
        features, logits = self._run(model, images)
        self._check_output(features, logits, len(images))
        lengths = {tap: feature[0].numel() for tap, feature in features.items()}
        shared = self.objective.shared(self.classes, lengths, self.seed)
        seed, round_, client = self._place
        logits = full_precision(logits)
        step, self._steps = self._steps, self._steps + 1
        batch = Batch(
            features,
            logits,
            labels,
            torch.ones_like(labels, dtype=torch.float32),
            self.classes,
            virtual_labels,
            {name: torch.from_numpy(values).to(images.device) for name, values in shared.items()},
            normal=partial(normals, seed, round_, client, step, like=logits),
        )
        with torch.autocast(images.device.type, enabled=False):  # the loss needs more digits than the model
            return self.objective.loss(batch)

    def _draw(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The next virtual images of shuffled passes over all of them, augmented, and their labels."""
        stream, (seed, round_, client) = self._stream(device), self._place
        if device not in self._passes:
            self._passes[device] = Passes(stream, seed, Purpose.VIRTUAL_ORDER, round_, client)
        first, self._drawn = self._drawn, self._drawn + rows
        index = self._passes[device].take(first, rows)
        number = first + torch.arange(rows, device=device)
        choices = stream.choices(words(seed, Purpose.VIRTUAL, round_, client, 0, number))
        return stream.batch(index, choices), stream.labels[index]

    def _stream(self, device: torch.device) -> Stream:
        if device not in self._streams:
            generator, directory = self.generator, data_directory()
            images = virtual_set(generator, self.virtual_classes, self.shape, self.seed, directory, device)
            statistics = generator.statistics(images.images)
            self._streams[device] = Stream(images, generator, statistics, device)
        return self._streams[device]

    def _run(self, model: nn.Module, images: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        """Features by tap, and logits."""
        if self.head is None:
            return _named(model(images))
        try:
            layer = model.get_submodule(self.head)
        except AttributeError:
            raise VHLError(
                f"The model has no layer {self.head!r}; head is the name of its last layer, as in "
                "model.named_modules()."
            ) from None
        inputs: list[Tensor] = []
        with layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0])):
            logits = model(images)
        if len(inputs) != 1 or not isinstance(logits, Tensor):
            raise VHLError(
                f"With head = {self.head!r} the model must return logits alone and use that layer once, "
                f"but it used it {len(inputs)} times and returned a {type(logits).__name__}."
            )
        return {"last": inputs[0]}, logits

    def _check_input(self, images: Tensor, labels: Tensor) -> None:
        height, width, channels = self.shape
        if images.shape[1:] != (channels, height, width):
            raise VHLError(
                f"Images are {tuple(images.shape)}, but VirtualHomogeneity was made for (N, {channels}, "
                f"{height}, {width}); change its size and channels."
            )
        if not len(images):
            raise VHLError("The batch is empty; leave it out.")
        if labels.shape != images.shape[:1] or labels.is_floating_point():
            raise VHLError(
                f"Labels must be one whole number an image, but for {len(images)} images they are "
                f"{tuple(labels.shape)} of {labels.dtype}."
            )
        low, high = (int(end) for end in labels.aminmax())
        if low < 0 or high >= self.classes:
            raise VHLError(
                f"Labels go from {low} to {high}, but with classes = {self.classes} they must be "
                f"0 to {self.classes - 1}."
            )

    def _check_output(self, features: Mapping[str, Tensor], logits: Tensor, rows: int) -> None:
        if logits.shape != (rows, self.outputs):
            raise VHLError(
                f"The model makes logits {tuple(logits.shape)} of {rows} images, natural and virtual, but "
                f"they must be ({rows}, {self.outputs}); make its last layer VirtualHomogeneity.outputs wide."
            )
        for tap in self.objective.taps():
            if tap in features and len(features[tap]) == rows:
                continue
            shapes = ", ".join(f"{name} {tuple(feature.shape)}" for name, feature in features.items())
            raise VHLError(
                f"objective.tap = {tap!r} must be features of {rows} images, natural and virtual, but the "
                f"model has {shapes}."
            )


def _named(output: object) -> tuple[Mapping[str, Tensor], Tensor]:
    match output:
        case (Tensor() as features, Tensor() as logits):
            return {"last": features}, logits
        case (dict() as features, Tensor() as logits):
            return features, logits
    raise VHLError(
        "The model must return (features, logits); give VirtualHomogeneity(head=...) the name of its last "
        "layer where it returns logits alone."
    )
