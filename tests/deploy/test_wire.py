from __future__ import annotations

import io
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vhl.algorithms.base import Server
from vhl.deploy.wire import (
    Form,
    RefusedError,
    flatten,
    form,
    from_arrays,
    from_text,
    to_arrays,
    to_text,
    unflatten,
)

PAIR: dict[str, Form] = {"x": (torch.float32, (2,))}
GOOD = np.array([1.5, -2.0], np.float32)


def transported(content: RecordDict) -> RecordDict:
    """As it arrives: through Flower's bytes."""
    sent = recorddict_to_proto(content).SerializeToString()
    return recorddict_from_proto(RecordDictProto.FromString(sent))


def saved(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def record(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (2,), stype: str = "numpy.ndarray"):
    """An array that says this of itself and has these bytes."""
    return RecordDict({"said": ArrayRecord({"x": Array(dtype, shape, stype, data)})})


def with_header(text: bytes, numbers: bytes = GOOD.tobytes()) -> RecordDict:
    return record(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + numbers)


def refused(content: RecordDict, expected: dict[str, Form] = PAIR) -> str:
    with pytest.raises(RefusedError) as caught:
        from_arrays(content, "said", expected)
    return str(caught.value)


TENSORS = {
    "float32": torch.randn(3, 4),
    "float64": torch.randn(5, dtype=torch.float64),
    "int64": torch.tensor([-(2**62), 0, 2**62]),
    "uint8": torch.arange(256, dtype=torch.uint8).view(2, 4, 4, 8),
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0),
    "empty matrix": torch.zeros(3, 0, dtype=torch.float64),
    "transposed": torch.randn(3, 4).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every other": torch.randn(10)[::2],
    "smallest": torch.tensor([1e-45, -0.0, 3.4028235e38]),
    "parameter": torch.nn.Parameter(torch.randn(2)),
}


def test_tensors_come_back_to_the_bit():
    forms = {name: form(tensor) for name, tensor in TENSORS.items()}
    back = from_arrays(transported(RecordDict({"said": to_arrays(TENSORS)})), "said", forms)
    assert list(back) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype and back[name].shape == tensor.shape
        assert back[name].numpy().tobytes() == tensor.detach().numpy().tobytes()
        back[name].zero_()  # its own memory, that may be written to


def test_no_tensors_come_back_as_none():
    assert from_arrays(transported(RecordDict({"said": to_arrays({})})), "said", {}) == {}


def test_fortran_order_is_read_as_such():
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    content = record(saved(np.asfortranarray(matrix)), shape=(2, 3))
    assert b"'fortran_order': True" in content["said"]["x"].data
    back = from_arrays(content, "said", {"x": (torch.float32, (2, 3))})["x"]
    assert back.tolist() == matrix.tolist()


def test_what_is_sent_is_no_view():
    tensor = torch.zeros(2)
    arrays = to_arrays({"x": tensor})
    tensor.fill_(1)
    assert from_arrays(RecordDict({"said": arrays}), "said", PAIR)["x"].tolist() == [0, 0]


def test_a_good_array_of_the_helpers_is_taken():
    """Else the refusals below would say nothing."""
    assert from_arrays(record(saved(GOOD)), "said", PAIR)["x"].tolist() == [1.5, -2.0]
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
    assert from_arrays(with_header(header), "said", PAIR)["x"].tolist() == [1.5, -2.0]


NO_ARRAYS = {
    "nothing": RecordDict(),
    "another key": RecordDict({"other": to_arrays({"x": torch.zeros(2)})}),
    "a config": RecordDict({"said": ConfigRecord({"x": 1})}),
    "a metric": RecordDict({"said": MetricRecord({"x": [1.0, 2.0]})}),
}
OTHER_NAMES: list[list[str]] = [[], ["y"], ["x", "y"], ["X"]]
DESCRIPTIONS: list[dict[str, Any]] = [
    *({"stype": stype} for stype in ("pickle", "")),
    *({"dtype": dtype} for dtype in ("float64", "<f4", "int32", "object", "nonsense")),
    *({"shape": shape} for shape in ((3,), (1, 2), (2, 1), (), (-2,), (2**62, 2**62))),
]
LIES = [
    *(np.zeros(2, dtype) for dtype in (np.float64, np.int32, ">f4", [("a", "<f4")], "S4", "<M8[s]")),
    *(np.zeros(shape, np.float32) for shape in (3, 1, (2, 1), ())),
    np.zeros(1, "<c8"),
]
REFUSED: list[tuple[str, RecordDict]] = [
    *(("no arrays 'said'", content) for content in NO_ARRAYS.values()),
    *(
        ("['x']", RecordDict({"said": to_arrays({name: torch.zeros(2) for name in names})}))
        for names in OTHER_NAMES
    ),
    *(("not float32 (2,)", record(saved(GOOD), **options)) for options in DESCRIPTIONS),
    *(("not what its description says", record(saved(array))) for array in LIES),
    *(
        (f"{8 + n} bytes", record(saved(GOOD)[:n] if n < 0 else saved(GOOD) + bytes(n)))
        for n in (-8, -1, 1, 4)
    ),
    *(("header", record(saved(GOOD)[:length])) for length in range(0, 128, 9)),
]


@pytest.mark.parametrize(("words", "content"), REFUSED, ids=[f"{i} {w}" for i, (w, _) in enumerate(REFUSED)])
def test_what_is_not_as_expected_is_refused(words, content):
    assert words in refused(content)


@pytest.mark.parametrize("shape", [(2**40,), (2**31, 2**31), (2**62, 4), (10**30,)], ids=str)
def test_a_gigantic_shape_is_refused_before_memory_is_asked_for(shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = with_header(header)
    tracemalloc.start()
    try:
        assert "not what its description says" in refused(content)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_gigantic_description_is_refused_too():
    """Also where the server itself would expect it, as if the numbers were there."""
    content = record(saved(GOOD), shape=(2**40,))
    assert "bytes" in refused(content, {"x": (torch.float32, (2**40,))})


class _Touch:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("dtype", ["float32", "object"])
def test_a_pickle_is_never_opened(tmp_path, dtype):
    array = np.array([_Touch(tmp_path / "ran")] * 2, object)
    for data in (saved(array, allow_pickle=True), pickle.dumps(array)):
        refused(record(data, dtype=dtype))
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(array))
    assert (tmp_path / "ran").exists()  # the payload would have worked


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_another_version_is_refused(version):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, GOOD, version=version)
    assert "header" in refused(record(stream.getvalue()))


BAD_HEADERS = {
    "empty": b"",
    "zero bytes": bytes(60),
    "no dict": b"[1, 2]",
    "keys missing": b"{'descr': '<f4'}",
    "one key more": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
    "a call": b"__import__('os').getcwd()",
    "no type": b"{'descr': 'nonsense', 'fortran_order': False, 'shape': (2,)}",
    "a type without parts": b"{'descr': (), 'fortran_order': False, 'shape': (2,)}",
    "order is no truth": b"{'descr': '<f4', 'fortran_order': 'yes', 'shape': (2,)}",
    "shape is no tuple": b"{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
    "shape of fractions": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,)}",
    "a bracket open": b"{'descr': '<f4', (",
    "a quote open": b"'''",
    "not text": b"\xff\xfe\x00",
    "many signs": b"-" * 9_000 + b"1",
    "many brackets": b"[" * 9_000,
    "a long sum": b"1+" * 4_500 + b"1",
    "a long number": b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 9_000 + b",)}",
    "longer than allowed": b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }" + b" " * 20_000,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_bad_header_is_refused(name):
    refused(with_header(BAD_HEADERS[name]))


@pytest.mark.filterwarnings("ignore")
@settings(deadline=None, max_examples=150)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text("{}[]()'\"<f4:,descrshapotn_ 012\n-", max_size=120).map(str.encode),
        st.integers(0, 60).map(
            lambda cut: b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"[:cut]
        ),
    )
)
def test_any_other_header_is_refused(text):
    refused(with_header(text))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_infinite_numbers_are_refused(dtype, value):
    tensor = torch.zeros(2, dtype=dtype)
    tensor[1] = value
    content = RecordDict({"said": to_arrays({"x": tensor})})
    assert refused(content, {"x": (dtype, (2,))}) == "x is not finite"


TABLE = {"a": 1, "b": [0.1, 1e300, -0.0], "c": {"d": None, "e": "ü\x00\n"}, "f": True, "g": 2**70}


def test_texts_come_back():
    back = from_text(transported(RecordDict({"said": to_text(TABLE)})), "said")
    assert back == TABLE and repr(back) == repr(TABLE)


def said(text: Any) -> RecordDict:
    return RecordDict({"said": ConfigRecord({"json": text})})


TEXTS: dict[str, list[RecordDict]] = {
    "no text": [
        *(RecordDict(), RecordDict({"said": ConfigRecord()})),
        RecordDict({"said": ConfigRecord({"text": "{}"})}),
        RecordDict({"said": MetricRecord({"json": 1})}),
        RecordDict({"said": to_arrays({"json": torch.zeros(1)})}),
        *(said(b"{}"), said(1), said(["{}"]), said('{"a": "' + "x" * 10_000_000 + '"}')),
    ],
    "not JSON": [
        *(said(text) for text in ("", "{", "{'a': 1}", '{"a": 1} {"b": 2}', "[" * 100_000)),
        said('{"a": ' + "9" * 5_000 + "}"),
        said('{"a": ' * 100_000 + "1" + "}" * 100_000),
    ],
    "no table": [said("[]"), said("null"), said('"{}"')],
}


@pytest.mark.parametrize("words", TEXTS)
def test_other_texts_are_refused(words):
    for content in TEXTS[words]:
        with pytest.raises(RefusedError, match=words):
            from_text(content, "said")


def test_a_text_of_the_largest_length_is_read():
    text = json.dumps({"a": "x" * (10_000_000 - 9)})
    assert len(from_text(said(text), "said")["a"]) == 10_000_000 - 9


def test_a_server_comes_back():
    server = Server(torch.randn(3), torch.randn(2), {"control": torch.randn(3), "state.odd": torch.ones(1)})
    flat = flatten(server)
    assert set(flat) == {"parameters", "buffers", "state.control", "state.state.odd"}
    back = unflatten(flat)
    assert back.parameters is server.parameters and back.buffers is server.buffers
    assert list(back.state) == ["control", "state.odd"]
    assert all(isinstance(vector, Tensor) and vector is server.state[n] for n, vector in back.state.items())
