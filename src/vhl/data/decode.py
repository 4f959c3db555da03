"""Decoding image files of any kind to colour squares of one size."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vhl.data.sources._reading import reading
from vhl.errors import VHLError
from vhl.text import first_of

SUFFIXES = {
    ".jpg",
    ".jpeg",
    ".jfif",
    ".png",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".ppm",
    ".pgm",
    ".pbm",
}
# Named, because some of Pillow's other formats start outside programs.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_CHUNK = 64  # images a task
NAMED = 10  # of files or folders that something is wrong with


def decode_all(
    place: Path, names: Sequence[str], read: Callable[[str], bytes], size: int, remedy: str
) -> np.ndarray:
    """Decode the images called ``names`` in ``place`` (a folder or archive) to uint8 (N, size, size, 3)."""
    images = np.empty((len(names), size, size, 3), np.uint8)

    def fill(start: int) -> dict[str, VHLError]:
        """Decode the images of one task; what is wrong, by the name of the image."""
        bad = {}
        for index in range(start, min(start + _CHUNK, len(names))):
            try:
                with reading(place / names[index], remedy):
                    images[index] = _decode(read(names[index]), size)
            except VHLError as error:
                bad[names[index]] = error
        return bad

    bad: dict[str, VHLError] = {}
    with ThreadPoolExecutor() as pool:
        try:
            for found in pool.map(fill, range(0, len(names), _CHUNK)):
                bad |= found
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if bad:
        (_, first), *others = bad.items()
        raise VHLError(f"{str(first).removesuffix('.')}{_likewise([name for name, _ in others])}.") from first
    return images


def _likewise(others: Sequence[str]) -> str:
    return f"; likewise {first_of(others, NAMED)}" if others else ""


def is_colour(images: np.ndarray) -> bool:
    """Whether the channels differ anywhere."""
    return bool((images[..., :1] != images[..., 1:]).any())


def _decode(raw: bytes, size: int) -> np.ndarray:
    try:
        image: Image.Image = Image.open(io.BytesIO(raw), formats=_FORMATS)
    except UnidentifiedImageError:
        raise ValueError("it is no image of a known format") from None
    image.draft(None, (2 * size, 2 * size))  # lets a large JPEG be decoded at a fraction of its size
    upright = ImageOps.exif_transpose(image)
    square = _to_colour(upright).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(square)


def _to_colour(image: Image.Image) -> Image.Image:
    """Bring any kind of pixels to 8-bit colour; what is transparent becomes white."""
    if image.mode.startswith("I"):
        return _from_sixteen_bits(image).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, save it with 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Scale 0 … 65,535 to 0 … 255; Pillow's own conversion would cut everything above 255 off."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65_535:
        raise ValueError("its pixels have 32 bits, save it with 8 or 16")
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))
