from __future__ import annotations

import json
from typing import Any

import pytest

from vhl.deploy.orders import Complaint, Report, Request
from vhl.deploy.wire import RefusedError

REQUEST = {"round": 3, "rate": 0.1, "state": 2}
REPORT = {
    "run": "run",
    "round": 3,
    "samples": 10,
    "totals": {"natural": 1.5},
    "keeps_state": True,
    "lost_state": False,
}
COMPLAINT = {"code": "data", "sentence": "x" * 200}
GOOD: dict[type[Any], dict[str, Any]] = {Request: REQUEST, Report: REPORT, Complaint: COMPLAINT}


@pytest.mark.parametrize("kind", GOOD)
def test_what_is_said_comes_back(kind):
    said = kind.read(GOOD[kind])
    assert kind.read(json.loads(json.dumps(said.model_dump()))) == said
    assert said.model_dump() == GOOD[kind]


@pytest.mark.parametrize("state", [{}, {"state": None}])
def test_an_order_may_name_no_state(state):
    assert Request.read({"round": 0, "rate": 0.0, **state}).state is None


WRONG: dict[type[Any], dict[str, list[Any]]] = {
    Request: {
        "round": [-1, 1.0, True, "1"],
        "rate": [-0.1, float("nan"), float("inf"), "0.1", None],
        "state": ["2", 1.5],
        "more": [1],
    },
    Report: {
        "run": [1],
        "round": ["3"],
        "samples": [10.0, None],
        "totals": [[1.5], *({"natural": value} for value in (float("nan"), float("-inf"), "1", None))],
        "keeps_state": [1, "yes"],
        "lost_state": [None],
        "more": [1],
    },
    Complaint: {"code": ["x" * 21], "sentence": ["x" * 201, 1], "path": ["/"]},
}


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (kind, key, value)
        for kind, wrong in WRONG.items()
        for key, values in wrong.items()
        for value in values
    ],
)
def test_anything_else_is_refused_by_name(kind, key, value):
    with pytest.raises(RefusedError) as caught:
        kind.read({**GOOD[kind], key: value})
    assert str(caught.value).startswith(f"{kind.__name__.lower()}.{key}")


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, said in GOOD.items() for key in said if key != "state"]
)
def test_what_lacks_is_refused(kind, key):
    with pytest.raises(RefusedError, match=key):
        kind.read({k: v for k, v in GOOD[kind].items() if k != key})
