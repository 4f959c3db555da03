from __future__ import annotations

import gzip
import os
import pickle
import tarfile

import numpy as np
import pytest

from official_forms import COLOUR, cifar_files, cifar_record, pack, write


def test_labels_out_of_range_are_damaged(tmp_path, complains):
    written = write("cifar10 binary folder", tmp_path, data_batch_2=cifar_record(COLOUR[0], 10))
    with complains(
        f"{written.files[1]} is damaged", "label 10 is not between 0 and 9", "vhl data get cifar10"
    ):
        written.read()


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_a_whole_gzip_of_half_an_archive_is_damaged(kind, tmp_path, complains):
    written = write(f"cifar10 {kind} archive", tmp_path)
    (archive,) = written.files
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes())[:20_000]))
    with complains(f"{archive} is damaged", "vhl data get cifar10"):
        written.read()


def test_an_archive_without_one_of_the_files_is_damaged(tmp_path, complains):
    written = write("cifar10 binary archive", tmp_path)
    (archive,) = written.files
    contents = cifar_files("cifar10 binary")
    del contents["data_batch_4.bin"]
    pack(archive, "cifar-10-batches-bin", contents)
    with complains(f"{archive} is damaged (it holds no data_batch_4.bin)", "vhl data get cifar10"):
        written.read()


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path, complains):
    written = write("cifar10 binary archive", tmp_path)
    with tarfile.open(written.files[0], "w:gz") as members:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        members.addfile(link)
    with complains(f"{written.files[0]} is damaged (it holds no data_batch_1.bin)"):
        written.read()


@pytest.mark.parametrize("form", ["cifar10 python folder", "cifar10 python archive"])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(form, tmp_path, complains):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was-run"),)

    hostile = pickle.dumps({"data": Hostile(), "labels": [1]})
    written = write(form, tmp_path, data_batch_3=hostile)
    with complains("data_batch_3 is not safe to open", "mkdir", "delete it", "vhl data get cifar10"):
        written.read()
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
def test_pickles_of_something_else_are_damaged(entry, reason, tmp_path, complains):
    written = write("cifar10 python folder", tmp_path, test_batch=pickle.dumps(entry))
    with complains(f"{written.files[5]} is damaged", reason, "vhl data get cifar10"):
        written.read()
