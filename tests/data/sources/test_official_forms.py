"""What holds for every source of published files, in every form they come in."""

from __future__ import annotations

import numpy as np
import pytest

from official_forms import FORMS, LABELS, write
from vhl.config.registry import build
from vhl.data.sources.base import Source
from vhl.data.sources.cifar10 import CIFAR10
from vhl.data.sources.cifar100 import CIFAR100
from vhl.data.sources.fmnist import FMNIST
from vhl.data.sources.svhn import SVHN

every_form = pytest.mark.parametrize("form", FORMS)


@every_form
def test_the_images_come_out_in_their_order_with_their_labels(form, tmp_path):
    written = write(form, tmp_path)
    dataset = written.read()
    assert (dataset.train.images == written.images[:10]).all()
    assert (dataset.test.images == written.images[10:]).all()
    assert dataset.train.labels.tolist() == LABELS[:10] and dataset.test.labels.tolist() == LABELS[10:]
    for part in (dataset.train, dataset.test):
        assert part.labels.dtype == np.int64 and part.images.flags.writeable


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "fmnist", "svhn", "tiny-imagenet"])
def test_what_is_missing_is_named_with_the_command_that_fetches_it(name, tmp_path, monkeypatch, complains):
    source = build(Source, "source", name)
    with complains(
        f"{tmp_path / source.official[0].path} is missing", f"data get {name} --data-dir {tmp_path}"
    ):
        source.read(tmp_path, seed=0)
    monkeypatch.setenv("VHL_DATA", str(tmp_path))
    with complains(f"run `vhl data get {name}`."):
        source.read(tmp_path, seed=0)


@every_form
def test_any_file_that_is_missing_or_cut_off_is_named(form, tmp_path, complains):
    written = write(form, tmp_path)
    for file in written.files:
        good = file.read_bytes()
        for keep in (0, 5, 30, len(good) // 2 + 1, -9, -1):
            file.write_bytes(good[:keep])
            with complains(f"{file} is damaged", f"vhl data get {form.split()[0]}"):
                written.read()
        file.unlink()
        named = tmp_path / written.source.official[0].path if form.endswith("archive") else file
        with complains(f"{named} is missing", f"vhl data get {form.split()[0]}"):
            written.read()
        file.write_bytes(good)
    written.read()


@pytest.mark.parametrize("form", [form for form in FORMS if form.endswith("archive") or form == "fmnist"])
def test_a_changed_byte_of_what_has_a_checksum_is_noticed(form, tmp_path, complains):
    written = write(form, tmp_path)
    for file in written.files:
        good = file.read_bytes()
        for position, flip in ((-6, 1), (len(good) // 2, 0xFF)):  # in the checksum, and in what it is of
            bad = bytearray(good)
            bad[position] ^= flip
            file.write_bytes(bad)
            with complains(f"{file} is damaged", f"vhl data get {form.split()[0]}"):
                written.read()
        file.write_bytes(good)


@pytest.mark.parametrize("form", ["cifar10 binary folder", "cifar10 python folder", "fmnist", "svhn"])
def test_a_folder_in_the_place_of_a_file_cannot_be_read(form, tmp_path, complains):
    written = write(form, tmp_path)
    written.files[0].unlink()
    written.files[0].mkdir()
    with complains(f"{written.files[0]} cannot be read (Is a directory)"):
        written.read()


def test_what_the_command_fetches_is_read_before_a_damaged_folder(tmp_path):
    write("cifar10 binary folder", tmp_path, test_batch=b"damaged")
    assert len(write("cifar10 binary archive", tmp_path).read().test) == 3
    for source in (CIFAR10, CIFAR100):
        assert source.official[0].path == source.places[0]


@pytest.mark.parametrize(
    ("source", "padding", "flip", "cutout", "mean", "std"),
    [
        (CIFAR10, 4, True, 0, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        (CIFAR100, 4, True, 16, [0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
        (FMNIST, 0, False, 0, [0, 0, 0], [1, 1, 1]),
        (SVHN, 0, False, 0, [0, 0, 0], [1, 1, 1]),
    ],
)
def test_defaults_are_those_of_the_paper(source, padding, flip, cutout, mean, std):
    found = source().statistics(np.zeros((1, 32, 32, 3), np.uint8))
    assert [values.tolist() for values in found] == [mean, std]
    assert (source().padding(32), source().flip, source().cutout) == (padding, flip, cutout)


@pytest.mark.parametrize(
    ("form", "count", "some"),
    [
        ("cifar10 binary folder", 10, {0: "airplane", 3: "cat", 5: "dog", 9: "truck"}),
        ("cifar100 binary folder", 100, {0: "apple", 47: "maple_tree", 99: "worm"}),
        ("fmnist", 10, {0: "T-shirt/top", 9: "Ankle boot"}),
        ("svhn", 10, {0: "0", 9: "9"}),
    ],
)
def test_classes_have_their_names(form, count, some, tmp_path):
    classes = write(form, tmp_path).read().classes
    assert len(set(classes)) == count and {label: classes[label] for label in some} == some
