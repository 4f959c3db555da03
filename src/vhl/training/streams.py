"""Images on the device: batches are gathered, augmented and normalised there in one go."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vhl.chance import Purpose, Words, below, halves, words
from vhl.data.images import ImageSet, ImageStream

Choices = dict[str, Tensor]
"""How samples are augmented, by name: where cropped, whether flipped, where the hole is."""


class Stream:
    """Labelled 8-bit images on a device, and the batches made of them."""

    def __init__(
        self,
        images: ImageSet,
        settings: ImageStream,
        statistics: tuple[np.ndarray, np.ndarray],
        device: torch.device,
        *,
        augment: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._made_of = images, settings, statistics, device, dtype
        self.shape = images.shape
        self.height, self.width, _ = images.shape
        self.padding = settings.padding(self.height) if augment else 0
        self.flip = settings.flip and augment
        self.cutout = settings.cutout if augment else 0
        pad = (self.padding, self.padding)
        # Padded once, so that a crop is a gather; black, as if padded before normalisation.
        self.images = torch.from_numpy(np.pad(images.images, ((0, 0), pad, pad, (0, 0)))).to(device)
        self.labels = torch.from_numpy(images.labels).to(device)
        mean, std = statistics
        self.scale = torch.tensor(1 / (255 * std), dtype=dtype, device=device)
        self.shift = torch.tensor(-mean / std, dtype=dtype, device=device)
        self._rows = torch.arange(self.height, device=device)
        self._columns = torch.arange(self.width, device=device)

    tiles = 1
    """Images to a side of what :meth:`batch` makes."""

    def shuffled(self, seed: int, purpose: Purpose, round_: int, client: int = 0, turn: int = 0) -> Tensor:
        """All samples in a round's random order: one for all clients, or a client's own in each turn."""
        place = torch.arange(len(self), device=self.labels.device)
        key, *_ = words(seed, purpose, round_, client, turn, place)
        return key.argsort(stable=True)

    def plain(self) -> Stream:
        """The same images, as they are."""
        images, settings, statistics, device, dtype = self._made_of
        return Stream(images, settings, statistics, device, augment=False, dtype=dtype)

    def __len__(self) -> int:
        return len(self.labels)

    def choices(self, drawn: Words) -> Choices:
        """How samples are augmented; of each sample's four words the first decides its place in the order."""
        _, crop, coin, hole = drawn
        found: Choices = {}
        if self.padding:
            found["row"], found["column"] = (below(half, 2 * self.padding + 1, 16) for half in halves(crop))
        if self.flip:
            found["flip"] = below(coin, 2) == 1
        if self.cutout:
            row, column = halves(hole)
            found["hole_row"] = below(row, self.height, 16)
            found["hole_column"] = below(column, self.width, 16)
        return found

    def batch(self, index: Tensor, choices: Choices) -> Tensor:
        """Normalised images (N, C, H, W), channels last in memory."""
        pixels = self._gather(index, choices).to(self.scale.dtype) * self.scale + self.shift
        if self.cutout:
            pixels = pixels * self._keep(choices)[..., None]
        return pixels.permute(0, 3, 1, 2)

    def _gather(self, index: Tensor, choices: Choices) -> Tensor:
        if not (self.padding or self.flip):
            return self.images[index]
        rows, columns = self._rows[None], self._columns[None]
        if self.flip:
            columns = torch.where(choices["flip"][:, None], self.width - 1 - columns, columns)
        if self.padding:
            rows, columns = rows + choices["row"][:, None], columns + choices["column"][:, None]
        return self.images[index[:, None, None], rows[:, :, None], columns[:, None, :]]

    def _keep(self, choices: Choices) -> Tensor:
        """0 inside the hole of each image, 1 elsewhere (DeVries and Taylor, 2017)."""
        low, high = self.cutout // 2, self.cutout - self.cutout // 2
        row = self._rows[None] - choices["hole_row"][:, None]
        column = self._columns[None] - choices["hole_column"][:, None]
        in_row, in_column = (row >= -low) & (row < high), (column >= -low) & (column < high)
        return ~(in_row[:, :, None] & in_column[:, None, :])


class Passes:
    """An endless run of passes through a stream's samples, each in another order."""

    def __init__(self, stream: Stream, seed: int, purpose: Purpose, round_: int, client: int = 0) -> None:
        self._stream, self._place = stream, (seed, purpose, round_, client)
        self._orders: dict[int, Tensor] = {}

    def take(self, first: int, count: int) -> Tensor:
        """So many samples of the run, of which the first has this number."""
        size = len(self._stream)
        turns = range(first // size, (first + count - 1) // size + 1)
        kept = self._orders
        self._orders = {
            turn: kept[turn] if turn in kept else self._stream.shuffled(*self._place, turn) for turn in turns
        }
        return torch.cat(list(self._orders.values()))[first - turns[0] * size :][:count]
