from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vhl.virtual.noise import Noise

SMALL = ("data.size=8", "virtual.per_class=6")


def test_images_labels_and_a_picture(vhl: Any) -> None:
    answer = vhl("virtual", *SMALL, "seeds.data=3", "-o", "out/set.npz", "--samples=4")
    assert answer.code == 0 and "60 images of 10 classes" in answer.out
    with np.load("out/set.npz") as stored:
        images, labels = stored["images"], stored["labels"]
    expected = Noise().generate(10, 6, (8, 8, 1), 3)
    assert np.array_equal(images, expected.images) and images.dtype == np.uint8
    assert np.array_equal(labels, np.repeat(np.arange(10), 6))
    with Image.open("out/set.png") as picture:
        # 8 pixels are enlarged to 64, with 2 between: 4 samples across, 10 classes down
        assert picture.size == (4 * 66 - 2, 10 * 66 - 2)
        corner = np.asarray(picture)[0, 0]
        last = np.asarray(picture)[9 * 66, 3 * 66]
    assert corner.tolist() == [images[0, 0, 0, 0]] * 3
    assert last.tolist() == [images[9 * 6 + 3, 0, 0, 0]] * 3


def test_tiles_of_mosaics_are_of_their_own_size(vhl: Any) -> None:
    vhl("virtual", *SMALL, "objective=vhl-light", "-o", "set.npz")
    with np.load("set.npz") as stored:
        assert np.array_equal(stored["images"], Noise().generate(10, 6, (4, 4, 1), 0).images)


def test_where_the_picture_goes(vhl: Any) -> None:
    assert vhl("virtual", *SMALL, "virtual.classes=3", "--picture=here/grid.png").code == 0
    with Image.open("here/grid.png") as picture:
        assert picture.size == (10 * 66 - 2, 3 * 66 - 2)
    assert Path("virtual.npz").is_file() and not Path("virtual.png").exists()


def test_the_picture_does_not_overwrite_the_images(vhl: Any, tmp_path: Path) -> None:
    vhl("virtual", *SMALL, "-o", "set.png").complains("set.png", ".npz")
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_trained_on(vhl: Any) -> None:
    """What comes out goes in again, as a data source."""
    vhl("virtual", *SMALL)
    answer = vhl("partition", "data=npz:virtual.npz", "partition=iid", "partition.clients=2")
    assert answer.code == 0 and "2 clients, 50 samples" in answer.out  # one of 6 in each class to test on
