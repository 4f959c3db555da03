"""The user's own images in folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from vhl.data.decode import NAMED, decode_all, is_colour
from vhl.data.images import Dataset, ImageSet
from vhl.data.sources._layout import Picture, empty_folders, is_for_tests, passed_over, survey
from vhl.data.sources.base import Source, split
from vhl.text import first_of

_TWELVE_BITS = 16  # 4,095 of 65,535, in 8 bits


class Folder(Source):
    """Your own images, folder:PATH with a folder a class; also a folder a site, and train and test folders.

    ``PATH/CLASS/image``, ``PATH/SITE/CLASS/image``, and with a level of ``train`` and ``test`` (or ``val``)
    folders above or below the sites. Images of any kind and size are stretched to squares; transparent pixels
    become white, 16-bit grey is scaled to 8 bits, a camera's orientation mark is heeded. Hidden files and
    other kinds of files are passed over.
    """

    primary: ClassVar[str | None] = "path"

    path: str = Field(min_length=1, description="the folder, relative to the current one")
    size: int = Field(32, ge=4, description="resize images to this many pixels a side")
    test_share: float = Field(
        0.2, gt=0, lt=1, description="share of each class and site to test on, where there is no test folder"
    )

    def read(self, data_dir: Path, seed: int) -> Dataset:
        root = Path(self.path).expanduser()
        pictures = survey(root)
        classes = sorted({picture.label for picture in pictures})
        sites = sorted({picture.site for picture in pictures} - {""})
        images = decode_all(
            root,
            [picture.file for picture in pictures],
            lambda file: (root / file).read_bytes(),
            self.size,
            "replace or remove it",
        )
        whole = ImageSet(
            images if is_colour(images) else images[..., :1].copy(),
            np.searchsorted(classes, [picture.label for picture in pictures]),
            np.searchsorted(sites, [picture.site for picture in pictures]) if sites else None,
        )
        is_test = np.array([picture.part == "test" for picture in pictures])
        if is_test.any():
            train, test = whole.take(~is_test), whole.take(is_test)
        else:
            train, test = split(whole, self.test_share, seed)
        return Dataset(
            train, test, tuple(classes), tuple(sites), remarks=tuple(self._remarks(root, images, pictures))
        )

    def _remarks(self, root: Path, images: np.ndarray, pictures: Sequence[Picture]) -> Iterator[str]:
        """What would else go unnoticed: folders without images, files that are passed over, black scans."""
        if empty := empty_folders(root, pictures):
            yield f"Folders without images in {root} are passed over: {first_of(empty, NAMED)}."
            if any(map(is_for_tests, empty)) and not any(picture.part == "test" for picture in pictures):
                yield f"{root} has no test images: {self.test_share:.0%} of each class are tested on instead."
        if others := passed_over(root):
            kinds = ", ".join(suffix or "no suffix" for suffix in others)
            yield f"Files of other kinds in {root} are passed over: {sum(others.values())} ({kinds})."
        if images.max() <= _TWELVE_BITS:
            yield (
                f"All images in {root} are nearly black, as 12-bit scans in 16-bit files are; save them with "
                "their full range."
            )
