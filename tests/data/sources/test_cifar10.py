from __future__ import annotations

import gzip
import os
import pickle
import tarfile

import numpy as np
import pytest

from vhl.data.sources.cifar10 import CIFAR10

TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
FOLDERS = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}
FORMS = ["binary folder", "binary archive", "python folder", "python archive", "python 3 folder"]


@pytest.fixture
def samples(rng):
    """Ten training and three test images with their labels."""
    return rng.integers(0, 256, (13, 32, 32, 3), dtype=np.uint8), [*range(10), 9, 0, 4]


@pytest.fixture
def files(samples, cifar_record, python2_pickle):
    """The six files of a form, two training images in each."""
    images, labels = samples

    def make(form):
        made = {}
        starts = [slice(start, start + 2) for start in range(0, 10, 2)]
        for name, part in zip([*TRAIN, "test_batch"], [*starts, slice(10, 13)], strict=True):
            pairs = list(zip(images[part], labels[part], strict=True))
            if form.startswith("binary"):
                made[f"{name}.bin"] = b"".join(cifar_record(image, label) for image, label in pairs)
            elif form.startswith("python 3"):
                rows = images[part].transpose(0, 3, 1, 2).reshape(len(pairs), -1)
                made[name] = pickle.dumps({b"data": rows, b"labels": labels[part]})
            else:
                made[name] = python2_pickle(images[part], labels[part], "labels")
        return made

    return make


@pytest.fixture
def write(tmp_path, files, pack):
    """Write a form into the data directory, with some files replaced; its place."""

    def put(form, **replaced):
        contents = files(form) | {name.replace("_bin", ".bin"): raw for name, raw in replaced.items()}
        kind = form.split()[0]
        if form.endswith("archive"):
            pack(tmp_path / f"cifar-10-{kind}.tar.gz", FOLDERS[kind], {"readme.html": b"hello", **contents})
            return tmp_path / f"cifar-10-{kind}.tar.gz"
        (tmp_path / FOLDERS[kind]).mkdir()
        for name, raw in contents.items():
            (tmp_path / FOLDERS[kind] / name).write_bytes(raw)
        return tmp_path / FOLDERS[kind]

    return put


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images_in_the_same_order(samples, write, tmp_path, form):
    write(form)
    dataset = CIFAR10().read(tmp_path, seed=0)
    images, labels = samples
    assert (dataset.train.images == images[:10]).all() and (dataset.test.images == images[10:]).all()
    assert dataset.train.labels.tolist() == labels[:10] and dataset.test.labels.tolist() == labels[10:]
    assert dataset.train.labels.dtype == np.int64 and dataset.train.images.flags.writeable
    assert [dataset.classes[label] for label in (0, 3, 5, 9)] == ["airplane", "cat", "dog", "truck"]


def test_defaults_are_those_of_the_paper():
    source = CIFAR10()
    assert (source.padding(32), source.flip, source.cutout) == (4, True, 0)
    mean, std = source.statistics(np.zeros((1, 32, 32, 3), np.uint8))
    assert mean.tolist() == [0.4914, 0.4822, 0.4465] and std.tolist() == [0.2470, 0.2435, 0.2616]


def test_what_the_command_fetches_is_read_before_a_damaged_folder(samples, write, tmp_path):
    write("binary folder", test_batch_bin=b"damaged")
    write("binary archive")
    assert (CIFAR10().read(tmp_path, seed=0).test.images == samples[0][10:]).all()
    assert CIFAR10.official[0].path == CIFAR10.places[0] == "cifar-10-binary.tar.gz"


def test_nothing_there_is_missing(tmp_path, complains):
    with complains("cifar-10-binary.tar.gz is missing", f"vhl data get cifar10 --data-dir {tmp_path}"):
        CIFAR10().read(tmp_path, seed=0)


@pytest.mark.parametrize("form", ["binary folder", "python folder"])
def test_a_missing_file_of_a_folder_is_named(write, tmp_path, form, complains):
    file = sorted(write(form).iterdir())[2]
    file.unlink()
    with complains(f"{file} is missing", "vhl data get cifar10"):
        CIFAR10().read(tmp_path, seed=0)


@pytest.mark.parametrize("form", FORMS)
def test_truncated_files_are_damaged(write, files, tmp_path, form, complains):
    name = sorted(files(form))[3]
    for keep in (0, 1, -1):
        place = write(form, **{name.replace(".", "_"): files(form)[name][:keep]})
        with complains(f"{place / name} is damaged", "vhl data get cifar10"):
            CIFAR10().read(tmp_path, seed=0)
        if place.is_dir():
            place.rename(tmp_path / f"old{keep}")


def test_labels_out_of_range_are_damaged(samples, write, tmp_path, cifar_record, complains):
    place = write("binary folder", data_batch_2_bin=cifar_record(samples[0][0], 10))
    with complains(f"{place / 'data_batch_2.bin'} is damaged", "label 10 is not between 0 and 9"):
        CIFAR10().read(tmp_path, seed=0)


@pytest.mark.parametrize("form", ["binary archive", "python archive"])
def test_a_damaged_archive_is_named(write, tmp_path, form, complains):
    archive = write(form)
    good = archive.read_bytes()
    flipped = bytearray(good)
    flipped[-6] ^= 1  # the checksum
    swapped = bytearray(good)
    swapped[len(good) // 2] ^= 0xFF
    for bad in (
        b"",
        b"no archive",
        good[:100],
        good[: len(good) // 2],
        good[:-4],
        bytes(flipped),
        bytes(swapped),
    ):
        archive.write_bytes(bad)
        with complains(f"{archive} is damaged", "vhl data get cifar10"):
            CIFAR10().read(tmp_path, seed=0)
    archive.write_bytes(gzip.compress(gzip.decompress(good)[:20_000]))  # a whole gzip of half an archive
    with complains(f"{archive} is damaged", "vhl data get cifar10"):
        CIFAR10().read(tmp_path, seed=0)


def test_an_archive_without_one_of_the_files_is_damaged(write, tmp_path, files, pack, complains):
    archive = write("binary archive")
    contents = files("binary")
    del contents["data_batch_4.bin"]
    pack(archive, "cifar-10-batches-bin", contents)
    with complains(f"{archive} is damaged (it holds no data_batch_4.bin)", "vhl data get cifar10"):
        CIFAR10().read(tmp_path, seed=0)


def test_a_link_in_the_place_of_a_file_is_not_followed(write, tmp_path, complains):
    archive = write("binary archive")
    with tarfile.open(archive, "w:gz") as members:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        members.addfile(link)
    with complains(f"{archive} is damaged (it holds no data_batch_1.bin)"):
        CIFAR10().read(tmp_path, seed=0)


@pytest.mark.parametrize("form", ["python folder", "python archive"])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(write, tmp_path, form, complains):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was-run"),)

    place = write(form, data_batch_3=pickle.dumps({"data": Hostile(), "labels": [1]}))
    with complains(
        f"{place / 'data_batch_3'} is not safe to open", "mkdir", "delete it", "vhl data get cifar10"
    ):
        CIFAR10().read(tmp_path, seed=0)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"labels": [1]}, "no entry 'data'"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "no entry 'labels'"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "rows of 3072 bytes"),
        ({"data": np.zeros((1, 3072)), "labels": [1]}, "rows of 3072 bytes"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "label for each of 1 images"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}, "label for each of 1 images"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "label -1"),
        ([], "no dictionary"),
    ],
)
def test_pickles_of_something_else_are_damaged(write, tmp_path, entry, reason, complains):
    place = write("python folder", test_batch=pickle.dumps(entry))
    with complains(f"{place / 'test_batch'} is damaged", reason, "vhl data get cifar10"):
        CIFAR10().read(tmp_path, seed=0)
