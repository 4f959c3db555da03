from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vhl.config.registry import build
from vhl.data.sources.base import Source
from vhl.data.sources.folder import Folder
from vhl.errors import VHLError


@pytest.fixture
def root(tmp_path):
    return tmp_path / "pictures"


@pytest.fixture
def put(root):
    """Write one flat image of a shade at every path; shades tell the images apart."""

    def write(*paths: str, size: tuple[int, int] = (6, 6)) -> None:
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", size, len(list(root.rglob("*.png")))).save(root / path)

    return write


@pytest.fixture
def read(root):
    return lambda seed=0, **options: Folder(path=str(root), **options).read(Path("/unused"), seed)


def counted(images, dataset):
    """How many images of each class (and site)."""
    if images.sites is None:
        return Counter(dataset.classes[label] for label in images.labels)
    return Counter(
        (dataset.sites[site], dataset.classes[label])
        for site, label in zip(images.sites, images.labels, strict=True)
    )


def some(folder: str, count: int = 1) -> list[str]:
    return [f"{folder}/{number}.png" for number in range(count)]


def test_classes_alone_are_split_by_share_and_seed(put, read):
    put(*some("dog", 10), *some("cat", 20))
    dataset = read()
    assert dataset.classes == ("cat", "dog") and dataset.sites == () and dataset.train.sites is None
    assert counted(dataset.train, dataset) == {"cat": 16, "dog": 8}
    assert counted(dataset.test, dataset) == {"cat": 4, "dog": 2}
    shades = [*dataset.train.images[:, 0, 0, 0], *dataset.test.images[:, 0, 0, 0]]
    assert sorted(shades) == list(range(30))
    labels = [*dataset.train.labels, *dataset.test.labels]
    assert all((shade < 10) == (label == 1) for shade, label in zip(shades, labels, strict=True))
    assert (read(seed=0).test.images == dataset.test.images).all()
    assert (read(seed=1).test.images != dataset.test.images).any()
    assert len(read(test_share=0.5).test) == 15


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("Training", "val"), ("train", "validation")])
def test_parts_with_classes(put, read, train, test):
    put(*some(f"{train}/a", 2), *some(f"{train}/b", 1), *some(f"{test}/a", 3), *some(f"{test}/b", 4))
    dataset = read()
    assert counted(dataset.train, dataset) == {"a": 2, "b": 1}
    assert counted(dataset.test, dataset) == {"a": 3, "b": 4}
    assert set(dataset.train.images[:, 0, 0, 0]) == {0, 1, 2}


def test_a_train_folder_alone_is_split(put, read):
    put(*some("train/a", 5), *some("train/b", 5))
    dataset = read()
    assert counted(dataset.test, dataset) == {"a": 1, "b": 1} and dataset.sites == ()


def test_sites_with_classes_are_split_within_each_site(put, read):
    put(*some("north/a", 10), *some("north/b", 5), *some("south/a", 5), *some("west/c", 15))
    dataset = read()
    assert dataset.train.labels.dtype == dataset.train.sites.dtype == np.int64
    assert dataset.sites == ("north", "south", "west") and dataset.classes == ("a", "b", "c")
    assert counted(dataset.train, dataset) == {
        ("north", "a"): 8,
        ("north", "b"): 4,
        ("south", "a"): 4,
        ("west", "c"): 12,
    }
    assert counted(dataset.test, dataset) == {
        ("north", "a"): 2,
        ("north", "b"): 1,
        ("south", "a"): 1,
        ("west", "c"): 3,
    }


@pytest.mark.parametrize("order", ["{site}/{part}/{label}", "{part}/{site}/{label}"])
def test_sites_and_parts_in_either_order(put, read, order):
    held = {("n", "train", "x"): 2, ("n", "test", "x"): 1, ("s", "train", "y"): 3, ("m", "test", "y"): 1}
    for (site, part, label), count in held.items():
        put(*some(order.format(site=site, part=part, label=label), count))
    dataset = read()
    assert dataset.sites == ("m", "n", "s")
    assert counted(dataset.train, dataset) == {("n", "x"): 2, ("s", "y"): 3}
    assert counted(dataset.test, dataset) == {("n", "x"): 1, ("m", "y"): 1}


def test_a_class_may_be_called_train(put, read):
    put(*some("bus", 5), *some("train", 5))
    assert read().classes == ("bus", "train")


def test_a_name_in_either_unicode_form_is_one_name(put, read):
    """An accented letter is one character or two; the files are found under what they are called."""
    one, two = "M\u00fcnchen", "Mu\u0308nchen"
    put(*some(f"{one}/caf\u00e9", 5), *some(f"{two}/b", 5))
    put(*(f"{two}/cafe\u0301/other-{number}.png" for number in range(5)))
    dataset = read()
    assert dataset.sites == (one,) and dataset.classes == ("b", "caf\u00e9")
    assert sum(map(len, (dataset.train, dataset.test))) == 15


def test_images_of_mixed_sizes_and_kinds_come_to_one_size(put, read, root):
    put(*some("a", 5), size=(50, 20))
    put(*some("b", 5), size=(3, 9))
    assert read().train.shape == (32, 32, 1)
    assert read(size=8).train.shape == (8, 8, 1)
    Image.new("RGB", (4, 4), (1, 2, 3)).save(root / "a" / "colour.png")
    assert read().train.shape == (32, 32, 3)
    assert Folder(path=str(root), channels=1).load(Path()).train.shape == (32, 32, 1)


def test_defaults_for_own_images():
    source = Folder(path="x")
    assert (source.padding(32), source.flip, source.cutout) == (4, False, 0)
    assert source.mean is None and source.std is None


def test_the_path_is_as_typed(put, root, monkeypatch):
    put(*some("a", 5), *some("b", 5))
    monkeypatch.chdir(root.parent)
    source = build(Source, "source", "folder:pictures")
    assert source.path == "pictures" and len(source.read(Path("/elsewhere"), 0).train) == 8
    monkeypatch.setenv("HOME", str(root.parent))
    assert len(Folder(path="~/pictures").read(Path(), 0).train) == 8


def test_a_path_that_is_no_folder(root, read, complains):
    with complains(f"{root} does not exist"):
        read()
    root.write_text("hello")
    with complains(f"{root} is not a folder"):
        read()


@pytest.mark.parametrize(
    ("paths", "texts"),
    [
        ([], ["holds no images"]),
        (["1.png"], ["1.png is not in a class folder"]),
        (["train/1.png", "test/1.png"], ["is not in a class folder"]),
        (["north/train/1.png", "north/test/1.png"], ["is not in a class folder"]),
        (["a/b/c/d/1.png"], ["is not in a class folder"]),
        (["a/b/c/1.png", "a/b/d/1.png"], ["is not in a class folder"]),
        (["a/1.png", "b/c/1.png"], ["different depths", "a/1.png", "b/c/1.png"]),
        (["train/a/1.png", "train/b/1.png", "north/a/1.png"], ["mixes train folders", "north"]),
        (["test/a/1.png", "test/b/1.png"], ["has a test folder but no train folder"]),
        (["train/a/1.png", "val/a/1.png", "test/a/1.png"], ["test and val folders", "keep one"]),
        (["train/a/1.png", "train/b/1.png", "test/a/1.png"], ["class b in train but not in test"]),
        (
            ["train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png", "test/c/1.png"],
            ["class c in test"],
        ),
    ],
)
def test_layouts_that_mean_nothing(root, put, read, paths, texts, complains):
    root.mkdir()
    put(*paths)
    with complains(*texts):
        read()


def test_images_must_be_left_to_test_on(root, put, complains):
    put("a/1.png", "b/1.png")
    with complains("no test images", "held out of 2 is none"):
        Folder(path=str(root)).load(Path())
    put(*some("a", 5), *some("b", 5))
    with complains("no validation images", "held out of 8 is none"):
        Folder(path=str(root), validation=0.1).load(Path())


def test_one_class_is_enough_for_a_site_alone(root, put, complains):
    put(*some("a", 5))
    source = Folder(path=str(root))
    assert len(source.load(Path(), whole=False).train) == 4
    with complains("one class only (a)"):
        source.load(Path())


@pytest.mark.parametrize("inside", ["", "old/older"])
def test_an_empty_class_is_named(root, put, read, complains, inside):
    put(*some("a", 5), *some("b", 5))
    (root / "c" / inside).mkdir(parents=True)
    (root / "c" / inside / "notes.txt").write_text("hello")
    with complains(f"{root / 'c'} holds no images"):
        read()


def test_an_empty_class_of_one_site_is_none(root, put, read, complains):
    put(*some("north/a", 5), *some("north/b", 5), *some("south/a", 5))
    (root / "south" / "b").mkdir()
    assert counted(read().train, read())["south", "a"] == 4
    (root / "south" / "c").mkdir()
    with complains(f"{root / 'south' / 'c'} holds no images"):
        read()


def test_an_unreadable_image_is_named(root, put, read, complains):
    put(*some("a", 5), *some("b", 5))
    raw = (root / "b" / "3.png").read_bytes()
    (root / "b" / "3.png").write_bytes(raw[:50])
    with complains(f"{root / 'b' / '3.png'} is damaged", "replace or remove it"):
        read()


def test_circular_links_are_not_followed_to_their_end(root, put, read):
    put(*some("a", 5), *some("b", 5))
    (root / "b" / "self").symlink_to(root / "b")
    with pytest.raises(VHLError, match="different depths") as caught:
        read()
    assert str(caught.value).count("self") <= 4


def test_hidden_and_other_files_are_passed_over_and_others_told(root, put, read):
    put(*some("a", 20), *some("b", 20))
    assert read().remarks == ()
    put(".hidden/a/1.png", "a/.DS_Store.png", "a/._1.png", "__MACOSX/a/1.png")
    for name in ("a/1.dcm", "a/2.DCM", "b/notes.txt", "b/.hidden", ".hidden/3.dcm", "b/README"):
        (root / name).touch()
    dataset = read()
    assert len(dataset.train) + len(dataset.test) == 40 and dataset.classes == ("a", "b")
    (remark,) = dataset.remarks
    assert remark == f"Files of other kinds in {root} are passed over: 4 (no suffix, .dcm, .txt)."
    assert Folder(path=str(root)).load(Path("/unused")).remarks == (remark,)


@pytest.mark.parametrize(
    ("images", "folders", "told"),
    [
        (["a", "b"], [], ""),
        (["n/a", "n/b", "s/a"], ["s/b"], ""),  # a site may lack a class
        (["n/a", "n/b", "s/a"], ["s/b/old"], ""),
        (["n/a", "n/b"], ["west/a", "east/b/c", ".hidden/x", "south"], "east, south, west"),
        (
            ["n/a", "n/b"],
            [f"{site:02}" for site in range(12)],
            "00, 01, 02, 03, 04, 05, 06, 07, 08, 09 and 2 more",
        ),
        (["train/n/a", "train/n/b", "test/n/a", "test/n/b"], ["train/s/a", "test/e"], "test/e, train/s"),
        (["n/train/a", "n/train/b", "s/test/a", "s/test/b"], ["n/test", "w/train"], "n/test, w"),
    ],
)
def test_folders_that_hold_no_images_are_told(root, put, read, images, folders, told):
    """As of a site whose images were not copied."""
    put(*(name for folder in images for name in some(folder, 5)))
    for folder in folders:
        (root / folder).mkdir(parents=True)
    remarks = [remark for remark in read().remarks if "without" in remark]
    expected = f"Folders without images in {root} are passed over: {told}."
    assert remarks == ([expected] if told else [])


@pytest.mark.parametrize(
    ("images", "empty", "told"),
    [
        (["train/a", "train/b"], "test", True),
        (["n/train/a", "n/train/b"], "n/val", True),
        (["n/train/a", "n/train/b", "n/test/a", "n/test/b"], "s/test", False),
        (["n/a", "n/b"], "s", False),
    ],
)
def test_that_test_images_are_missing_is_told(root, put, read, images, empty, told):
    put(*(name for folder in images for name in some(folder, 5)))
    (root / empty).mkdir(parents=True)
    expected = f"{root} has no test images: 20% of each class are tested on instead."
    assert (expected in read().remarks) == told


@pytest.mark.parametrize(("brightest", "told"), [(4_095, True), (65_535, False)])
def test_scans_that_come_out_black_are_told(root, read, brightest, told):
    for label in "ab":
        (root / label).mkdir(parents=True)
        for number in range(5):
            ramp = np.linspace(0, brightest, 36).reshape(6, 6).astype(np.uint16)
            Image.fromarray(ramp).save(root / label / f"{number}.png")
    assert ["12-bit" in remark for remark in read().remarks] == [True] * told
