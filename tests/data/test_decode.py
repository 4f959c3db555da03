from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vhl.data.decode import decode_all, is_colour

RED, BLUE, GREY = (255, 0, 0), (0, 0, 255), (90, 90, 90)


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def decode(*raw: bytes, size: int = 4) -> np.ndarray:
    files = {f"{number}": content for number, content in enumerate(raw)}
    return decode_all(Path("place"), list(files), files.__getitem__, size, "mend it")


def halves(left: object, right: object, mode: str = "RGB", size: int = 8) -> Image.Image:
    image = Image.new(mode, (size, size), left)
    image.paste(right, (size // 2, 0, size, size))
    return image


def assert_halves(image: np.ndarray, left: tuple[int, ...], right: tuple[int, ...], within: int = 0) -> None:
    middle = image.shape[1] // 2
    assert np.abs(image[:, 0].astype(int) - left).max() <= within
    assert np.abs(image[:, -1].astype(int) - right).max() <= within
    assert image.shape[1] == 2 * middle


def test_images_come_out_in_order_over_many_tasks():
    shades = [number % 256 for number in range(300)]
    images = decode(*(encode(Image.new("L", (5, 3), shade)) for shade in shades))
    assert images.shape == (300, 4, 4, 3) and images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == shades and (images == images[:, :1, :1, :1]).all()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "PPM"])
def test_lossless_formats_keep_their_colours(kind):
    assert_halves(decode(encode(halves(RED, BLUE), kind))[0], RED, BLUE)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_formats_nearly_keep_their_colours(kind):
    assert_halves(decode(encode(halves(RED, BLUE, size=64), kind, quality=95))[0], RED, BLUE, within=6)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ([70], "; mend it."),
        ([3, 70, 71], "; mend it; likewise 70, 71."),
        (range(130), "; mend it; likewise 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 119 more."),
    ],
)
def test_all_damaged_images_are_named_at_once(bad, told, complains):
    good = encode(Image.new("L", (4, 4)))
    raw = [b"no image" if number in bad else good for number in range(150)]
    with complains(f"{Path('place') / str(bad[0])} is damaged", told):
        decode(*raw)


def test_a_large_photograph_shrinks_to_its_averages(rng):
    noise = rng.integers(0, 256, (400, 400, 3), dtype=np.uint8)
    noise[:, 200:] //= 4  # the right half has a quarter of the light
    small = decode(encode(Image.fromarray(noise), "JPEG", quality=95), size=8)[0].astype(float)
    assert abs(small[:, :3].mean() - noise[:, :150].mean()) < 3
    assert abs(small[:, 5:].mean() - noise[:, 250:].mean()) < 3


def test_the_camera_s_orientation_is_heeded():
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down: turn by 180°
    assert_halves(decode(encode(halves(RED, BLUE, size=64), "JPEG", quality=95, exif=exif))[0], BLUE, RED, 6)
    exif[0x0112] = 6  # turn by 90° clockwise: the left becomes the top
    turned = decode(encode(halves(RED, BLUE, size=64), "JPEG", quality=95, exif=exif))[0]
    assert_halves(turned.transpose(1, 0, 2), RED, BLUE, 6)


def test_palettes_give_their_colours():
    assert_halves(decode(encode(halves(RED, BLUE).convert("P")))[0], RED, BLUE)


def test_transparent_pixels_become_white():
    image = halves((*RED, 255), (*BLUE, 0), "RGBA")
    assert_halves(decode(encode(image))[0], RED, (255, 255, 255))
    grey = halves((90, 255), (90, 0), "LA")
    assert_halves(decode(encode(grey))[0], GREY, (255, 255, 255))
    palette = halves(0, 1, "P")
    palette.putpalette([*RED, *BLUE])
    assert_halves(decode(encode(palette, transparency=1))[0], RED, (255, 255, 255))


def test_black_and_white_pixels_use_the_whole_range():
    assert_halves(decode(encode(halves(0, 1, "1")))[0], (0, 0, 0), (255, 255, 255))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight(kind):
    values = np.repeat(np.array([[0, 257 * 100, 65_535, 257 * 7]], np.uint16), 4, axis=0)
    assert decode(encode(Image.fromarray(values), kind))[0, :, :, 0].tolist() == [[0, 100, 255, 7]] * 4


def test_printing_colours_become_screen_colours():
    image = halves((0, 255, 255, 0), (255, 255, 0, 0), "CMYK", size=64)
    assert_halves(decode(encode(image, "TIFF"))[0], RED, BLUE)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "no image"),
        (b"no image at all", "no image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image"),
        (encode(Image.effect_noise((64, 64), 90), "JPEG")[:-300], "truncated"),
        (encode(Image.effect_noise((64, 64), 90))[:900], ""),
        (encode(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), "8 or 16 bits"),
        (encode(Image.fromarray(np.full((4, 4), 70_000, np.int32)), "TIFF"), "8 or 16"),
    ],
)
def test_the_first_unreadable_image_is_named(complains, raw, reason):
    good = encode(halves(RED, BLUE))
    with complains("place/1 is damaged", reason, "mend it"):
        decode(good, raw, good, b"also bad")


def test_colour_is_where_channels_differ():
    assert not is_colour(decode(encode(halves(GREY, (3, 3, 3)))))
    assert is_colour(decode(encode(halves(GREY, GREY)), encode(halves(GREY, (90, 90, 91)))))
    assert is_colour(decode(encode(halves(GREY, (91, 90, 90)))))
