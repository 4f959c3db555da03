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


@pytest.mark.parametrize(
    ("kind", "changes", "key"),
    [
        (Request, {"round": -1}, "round"),
        (Request, {"round": 1.0}, "round"),
        (Request, {"round": True}, "round"),
        (Request, {"round": "1"}, "round"),
        (Request, {"rate": -0.1}, "rate"),
        (Request, {"rate": float("nan")}, "rate"),
        (Request, {"rate": float("inf")}, "rate"),
        (Request, {"rate": "0.1"}, "rate"),
        (Request, {"rate": None}, "rate"),
        (Request, {"state": "2"}, "state"),
        (Request, {"state": 1.5}, "state"),
        (Request, {"more": 1}, "more"),
        (Report, {"run": 1}, "run"),
        (Report, {"round": "3"}, "round"),
        (Report, {"samples": 10.0}, "samples"),
        (Report, {"samples": None}, "samples"),
        (Report, {"totals": [1.5]}, "totals"),
        (Report, {"totals": {"natural": float("nan")}}, "totals"),
        (Report, {"totals": {"natural": float("-inf")}}, "totals"),
        (Report, {"totals": {"natural": "1"}}, "totals"),
        (Report, {"totals": {"natural": None}}, "totals"),
        (Report, {"keeps_state": 1}, "keeps_state"),
        (Report, {"keeps_state": "yes"}, "keeps_state"),
        (Report, {"lost_state": None}, "lost_state"),
        (Report, {"more": 1}, "more"),
        (Complaint, {"code": "x" * 21}, "code"),
        (Complaint, {"sentence": "x" * 201}, "sentence"),
        (Complaint, {"sentence": 1}, "sentence"),
        (Complaint, {"path": "/"}, "path"),
    ],
    ids=str,
)
def test_anything_else_is_refused_by_name(kind, changes, key):
    with pytest.raises(RefusedError) as caught:
        kind.read({**GOOD[kind], **changes})
    assert str(caught.value).startswith(f"{kind.__name__.lower()}.{key}")


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, said in GOOD.items() for key in said if key != "state"]
)
def test_what_lacks_is_refused(kind, key):
    with pytest.raises(RefusedError, match=key):
        kind.read({k: v for k, v in GOOD[kind].items() if k != key})
