from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest

from official_forms import python2_pickle
from vhl.data.sources._unpickle import RefusedError, load


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("old_numpy", [False, True])
def test_plain_values_and_arrays_come_back_from_every_protocol(rng, protocol, old_numpy):
    content = {
        "rows": rng.integers(0, 256, (3, 5), dtype=np.uint8),
        "columns": np.asfortranarray(rng.integers(-9, 9, (4, 2))),
        "big-endian": np.arange(5, dtype=">i4"),
        "fractions": np.array([0.5, -2]),
        b"bytes": b"\x00\xff",
        "list": [1, 2.5, "text", None, {"nested": (3, 4)}],
        "scalar": [np.int64(-7), np.float32(0.25)],
    }
    raw = pickle.dumps(content, protocol)
    if old_numpy and protocol < 4:  # from protocol 4 on, names carry their length
        raw = raw.replace(b"numpy._core", b"numpy.core")
    found = load(raw)
    for key in ("rows", "columns", "big-endian", "fractions"):
        assert (found[key] == content[key]).all() and found[key].dtype == content[key].dtype
    assert (found["bytes"], found["list"], found["scalar"]) == (b"\x00\xff", content["list"], [-7, 0.25])


def test_a_pickle_of_python_2_comes_back(rng):
    images = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    found = load(python2_pickle(images, [3, 9], "labels"))
    assert found["labels"] == [3, 9]
    assert (found["data"].reshape(2, 3, 32, 32) == images.transpose(0, 3, 1, 2)).all()


class _Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "hostile",
    [
        lambda marker: _Runs(os.mkdir, marker),
        lambda marker: _Runs(eval, f"__import__('os').mkdir({marker!r})"),
        lambda marker: [{"nested": _Runs(os.mkdir, marker)}],
        lambda marker: np.array([_Runs(os.mkdir, marker)], object),
    ],
)
def test_a_pickle_that_would_run_something_is_refused_and_not_run(tmp_path, protocol, hostile):
    marker = tmp_path / "was-run"
    with pytest.raises(RefusedError):
        load(pickle.dumps({"data": hostile(str(marker))}, protocol))
    assert not marker.exists()


def test_only_the_names_plain_arrays_need_are_admitted():
    for name in (b"numpy\nload", b"numpy\nfromfile", b"numpy.core.multiarray\nfromfile", b"builtins\ndict"):
        with pytest.raises(RefusedError, match=name.replace(b"\n", b".").decode()):
            load(b"\x80\x02}U\x01ac" + name + b"\ns.")


def test_an_array_of_objects_with_forged_flags_never_reaches_numpy():
    """NumPy would take the eight bytes for a pointer to an object: it believes the stream's flags."""
    kind = b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01\x85"
    raw = b"\x80\x02}U\x04data" + start + kind + b"\x89T" + struct.pack("<i", 8) + b"A" * 8 + b"tbs."
    with pytest.raises(RefusedError, match="O8"):
        load(raw)


def test_other_encodings_are_refused():
    with pytest.raises(RefusedError, match="zlib"):
        load(b"\x80\x02}U\x01ac_codecs\nencode\nU\x01xU\x04zlib\x86Rs.")


def test_what_is_no_dictionary_is_an_error():
    with pytest.raises(ValueError, match="no dictionary"):
        load(pickle.dumps([1, 2]))
