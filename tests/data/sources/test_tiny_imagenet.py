from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from vhl.data.sources.tiny_imagenet import TinyImageNet

NUMBERS = ["n02124075", "n01443537", "n04067472"]  # in the shuffled order of wnids.txt


def jpeg(shade: int, grey: bool = False) -> bytes:
    stream = io.BytesIO()
    Image.new("L" if grey else "RGB", (64, 64), shade if grey else (shade, shade, shade // 2)).save(
        stream, "JPEG"
    )
    return stream.getvalue()


@pytest.fixture
def files():
    """Ten training and two validation images of each of three classes; brightness tells the class."""
    files = {"wnids.txt": "\n".join(NUMBERS).encode()}
    rows = []
    for shade, number in enumerate(NUMBERS):
        files[f"train/{number}/{number}_boxes.txt"] = b"boxes"
        for image in range(10):
            files[f"train/{number}/images/{number}_{image}.JPEG"] = jpeg(80 * shade, grey=image == 3)
        for image in range(2):
            name = f"val_{3 * image + shade}.JPEG"
            files[f"val/images/{name}"] = jpeg(80 * shade)
            rows.append(f"{name}\t{number}\t0\t32\t44\t62\n")
    files["val/val_annotations.txt"] = "".join(rows).encode()
    files["test/images/test_0.JPEG"] = jpeg(0)
    return files


@pytest.fixture(params=["folder", "zip"])
def write(request, tmp_path):
    def put(files):
        if request.param == "zip":
            with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as archive:
                for name, raw in files.items():
                    archive.writestr(f"tiny-imagenet-200/{name}", raw)
            return tmp_path / "tiny-imagenet-200.zip"
        for name, raw in files.items():
            (tmp_path / "tiny-imagenet-200" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "tiny-imagenet-200" / name).write_bytes(raw)
        return tmp_path / "tiny-imagenet-200"

    return put


def shades(images):
    """What the brightness of each image says its position in NUMBERS is."""
    return np.rint(images.images[:, 32, 32, 0] / 80).astype(int)


def test_validation_images_are_test_images_and_classes_are_sorted(files, write, tmp_path):
    write(files)
    dataset = TinyImageNet().read(tmp_path, seed=0)
    assert dataset.classes == tuple(sorted(NUMBERS))
    assert dataset.train.images.shape == (30, 64, 64, 3) and dataset.test.images.shape == (6, 64, 64, 3)
    for part in (dataset.train, dataset.test):
        assert [dataset.classes[label] for label in part.labels] == [NUMBERS[shade] for shade in shades(part)]
        assert part.labels.dtype == np.int64
    assert np.bincount(dataset.test.labels).tolist() == [2, 2, 2]


def test_the_first_classes_are_the_first_in_sorted_order(files, write, tmp_path, complains):
    place = write(files)
    dataset = TinyImageNet(classes=2).read(tmp_path, seed=0)
    assert dataset.classes == ("n01443537", "n02124075")
    assert (len(dataset.train), len(dataset.test)) == (20, 4) and set(shades(dataset.test)) == {0, 1}
    with complains(f"{place} holds 3 classes", "not 4"):
        TinyImageNet(classes=4).read(tmp_path, seed=0)


def test_without_annotations_a_seeded_tenth_of_each_class_is_test(files, write, tmp_path):
    write({name: raw for name, raw in files.items() if not name.startswith("val/")})
    dataset = TinyImageNet().read(tmp_path, seed=0)
    assert np.bincount(dataset.train.labels).tolist() == [9, 9, 9]
    assert np.bincount(dataset.test.labels).tolist() == [1, 1, 1]


def test_the_size_is_an_option(files, write, tmp_path):
    write(files)
    assert TinyImageNet(size=32).load(tmp_path).test.shape == (32, 32, 3)


@pytest.mark.parametrize(
    ("name", "raw", "reason"),
    [
        ("train/n04067472/images/n04067472_7.JPEG", jpeg(80)[:-30], "truncated"),
        ("train/n04067472/images/n04067472_7.JPEG", b"", "no image"),
        ("val/images/val_4.JPEG", b"hello", "no image"),
        ("val/val_annotations.txt", b"", "an image and a class in every line"),
        ("val/val_annotations.txt", b"val_0.JPEG n01443537", "an image and a class in every line"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn99999999\t0", "no image of the classes"),
        ("val/val_annotations.txt", b"\xff\xfe\x00", ""),
    ],
)
def test_a_damaged_file_is_named(files, write, tmp_path, name, raw, reason, complains):
    place = write(files | {name: raw})
    with complains(f"{place / name} is damaged", reason, "vhl data get tiny-imagenet"):
        TinyImageNet().read(tmp_path, seed=0)


def test_an_annotated_image_that_is_absent_is_named(files, write, tmp_path, complains):
    del files["val/images/val_5.JPEG"]
    place = write(files)
    with complains(f"{place / 'val/images/val_5.JPEG'} is", "vhl data get tiny-imagenet"):
        TinyImageNet().read(tmp_path, seed=0)


def test_too_few_classes_are_damage(files, write, tmp_path, complains):
    place = write({name: raw for name, raw in files.items() if "train/n0" not in name or NUMBERS[0] in name})
    with complains(f"{place} is damaged", "fewer than two classes", "vhl data get tiny-imagenet"):
        TinyImageNet().read(tmp_path, seed=0)


@pytest.mark.parametrize("write", ["zip"], indirect=True)
def test_a_damaged_archive_is_named(files, write, tmp_path, complains):
    archive = write(files)
    good = archive.read_bytes()
    flipped = bytearray(good)
    flipped[good.index(b"\xff\xd8") + 10] ^= 1
    for bad in (b"", good[:1000], good[:-10], bytes(flipped)):
        archive.write_bytes(bad)
        with complains(f"{archive}", "is damaged", "vhl data get tiny-imagenet"):
            TinyImageNet().read(tmp_path, seed=0)


def test_what_the_command_fetches_is_read_before_a_damaged_folder(files, tmp_path):
    (tmp_path / "tiny-imagenet-200" / "train").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / TinyImageNet.official[0].path, "w") as archive:
        for name, raw in files.items():
            archive.writestr(f"tiny-imagenet-200/{name}", raw)
    assert len(TinyImageNet().read(tmp_path, seed=0).train) == 30
