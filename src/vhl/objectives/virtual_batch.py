"""The virtual images of a step: how many, in mosaics or not, and what they count in batch norm."""

from __future__ import annotations

from dataclasses import dataclass

from vhl.errors import VHLError


@dataclass(frozen=True)
class VirtualBatch:
    """The virtual images of one step, and how they take part in it."""

    rows: int
    """How many there are."""
    tiles: int = 1
    """To a side of a mosaic: so many squared share the place of one image."""
    one_class: bool = False
    """Whether all tiles of a mosaic have the same label."""
    share: float | None = None
    """Of batch-norm statistics; unset, they count by number, as natural images do."""

    @property
    def places(self) -> int:
        """Images of full size that they come to."""
        return self.rows // self.tiles**2

    def shape(self, natural: tuple[int, int, int]) -> tuple[int, int, int]:
        """Of each, where natural images are of that shape: tiles are made at their own size."""
        height, width, channels = natural
        if height % self.tiles or width % self.tiles:
            raise VHLError(
                f"objective.mosaic = {self.tiles} must divide images of {height}×{width}; choose a size of "
                "images that it divides, or objective.mosaic=1."
            )
        return height // self.tiles, width // self.tiles, channels
