"""What a node answers to a message: good answers and complaints, and no path in either."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity

from vhl.algorithms.base import Server
from vhl.deploy.client_app import answering, app
from vhl.deploy.orders import Complaint, Report
from vhl.deploy.settings import NodeSettings
from vhl.deploy.site import Site, SiteError
from vhl.deploy.terms import Terms
from vhl.deploy.wire import RefusedError, flatten, from_text, to_arrays, to_text
from vhl.errors import VHLError


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., RecordDict]:
    """What the app answers; nothing that leaves the site has a path in it."""

    def answer(
        config: NodeSettings | dict[str, Any], kind: str, records: dict[str, Any], by: Any = app
    ) -> RecordDict:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        own = config if isinstance(config, dict) else config.model_dump(mode="json")
        context = Context(run_id=1, node_id=5, node_config=own, state=RecordDict(), run_config={})
        content: RecordDict = by(Message(RecordDict(records), 5, kind), context).content
        sent = recorddict_to_proto(content).SerializeToString()
        words = [str(tmp_path), tmp_path.name, ".npz", ".safetensors", "Traceback", "Error(", "secret"]
        assert len(sent) > 10 and not any(word.encode() in sent for word in words)
        return content

    return answer


def code(found: RecordDict) -> str:
    """Of a complaint, which is all there is."""
    assert set(found) == {"complaint"}
    return Complaint.read(from_text(found, "complaint")).code


def order(terms: Terms, server: Server | None = None, **values: Any) -> dict[str, Any]:
    records = {"terms": to_text(terms.table()), "order": to_text({"round": 0, "rate": 0.1, **values})}
    return records if server is None else {**records, "server": to_arrays(flatten(server))}


@pytest.fixture
def scene(node: Any, terms_of: Any) -> tuple[NodeSettings, Terms, Server]:
    here = node()
    terms = terms_of(here)
    model = (setup := Site(here, terms).setup).model(start=True)
    state = setup.experiment.algorithm.server_state(model.parameters)
    return here, terms, Server(model.parameters, model.buffers, state)


def test_good_answers(scene, ask, plain):
    here, terms, server = scene
    assert set(ask(here, "query.hello", {"hello": to_text({"experiment": plain.table()})})) == {"facts"}
    trained = ask(here, "train", order(terms, server))
    assert set(trained) == {"report", "update"}
    report = Report.read(from_text(trained, "report"))
    assert (report.run, report.round, report.samples) == ("run", 0, 16)
    assert report.keeps_state and not report.lost_state
    model = {"server": to_arrays({"parameters": server.parameters, "buffers": server.buffers})}
    for kind in ("evaluate", "query.moments"):
        assert set(ask(here, kind, {**order(terms), **model})) == {"report", "seen"}


def test_a_state_that_is_lost_or_damaged_is_told(scene, ask):
    here, terms, server = scene

    def lost(**values: Any) -> bool:
        found = ask(here, "train", order(terms, server, **values))
        return Report.read(from_text(found, "report")).lost_state

    assert not lost() and lost(state=9) and not lost(round=1, state=0)
    for file in (here.store / "clients").rglob("*.safetensors"):
        file.write_bytes(b"nothing")
    assert lost(round=1, state=0)


def _damage_data(here: NodeSettings, npz: Any) -> None:
    Path(here.data.removeprefix("npz:")).write_bytes(b"nothing")


def _other_classes(here: NodeSettings, npz: Any) -> None:
    npz(Path(here.data.removeprefix("npz:")), [0, 1] * 10, classes=np.array(["secret", "illness"]))


def _block_store(here: NodeSettings, npz: Any) -> None:
    """A file where the folder of states should be."""
    here.store.mkdir(parents=True, exist_ok=True)
    (here.store / "clients").write_text("")


@pytest.mark.parametrize(
    ("spoil", "expected"), [(_damage_data, "data"), (_other_classes, "data"), (_block_store, "state")]
)
def test_what_goes_wrong_at_the_site_is_a_complaint(scene, ask, npz, caplog, spoil, expected):
    here, terms, server = scene
    spoil(here, npz)
    assert code(ask(here, "train", order(terms, server))) == expected
    assert caplog.records  # whoever runs the site is told


@pytest.mark.parametrize("kind", ["query.hello", "train", "evaluate", "query.virtual", "query.moments"])
def test_wrong_settings_are_a_complaint(scene, ask, tmp_path, kind):
    _, terms, server = scene
    config = {"store": str(tmp_path), "name": "a/b", "data": "npz:x"}
    assert code(ask(config, kind, order(terms, server))) == "settings"


@pytest.mark.parametrize(
    "data", ["npz:HERE/gone.npz", "folder:HERE/gone", "HERE/own.py:Source", "part:9", "part:x", "nonsense"]
)
def test_data_that_are_missing_are_a_complaint(node, ask, plain, tmp_path, data):
    here = node(data=data.replace("HERE", str(tmp_path)))
    assert code(ask(here, "query.hello", {"hello": to_text({"experiment": plain.table()})})) == "data"


def test_a_virtual_set_is_asked_for_and_taken(node, ask, terms_of, virtual_of):
    here = node(virtual="receive")
    terms = terms_of(here, objective="vhl")
    assert code(ask(here, "train", order(terms))) == "virtual"
    made = virtual_of(terms)
    arrays = {"images": torch.from_numpy(made.images), "labels": torch.from_numpy(made.labels)}
    gift = {"virtual": to_text({"images": len(made)}), "images": to_arrays(arrays)}
    other = to_text(replace(terms, virtual="0" * 64).table())
    assert code(ask(here, "query.virtual", {**gift, "terms": other})) == "virtual"
    assert set(ask(here, "query.virtual", {**gift, "terms": to_text(terms.table())})) == {"report"}
    assert code(ask(here, "train", order(terms))) == "message"  # for want of the server's model alone


@pytest.mark.parametrize(
    "change",
    [
        {"terms": None, "order": None, "server": None},
        {"order": None, "server": None},
        {"terms": to_text({})},
        {"order": to_text({"round": -1, "rate": 0.1})},
        {"order": to_text({"round": 0, "rate": float("nan")})},
        {"order": to_text({"round": 0, "rate": 0.1, "more": 1})},
        {"server": to_arrays({})},
        {"server": to_arrays({"parameters": torch.zeros(1), "buffers": torch.zeros(1)})},
    ],
    ids=[
        "nothing",
        "terms alone",
        "empty terms",
        "a round before the first",
        "no rate",
        "more",
        "none",
        "short",
    ],
)
def test_a_message_that_is_no_order_is_refused(scene, ask, change):
    here, terms, server = scene
    records = {k: v for k, v in {**order(terms, server), **change}.items() if v is not None}
    assert code(ask(here, "train", records)) == "message"
    assert not (here.store / "clients").exists()


def test_code_that_a_message_names_does_not_run(scene, ask, tmp_path):
    here, terms, server = scene
    file = tmp_path / "own.py"
    file.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    for part in (f"{file}:Own", {"name": f"{file}:Own"}):
        table = json.loads(json.dumps(terms.table()))
        table["experiment"]["algorithm"] = part
        assert code(ask(here, "train", {**order(terms, server), "terms": to_text(table)})) == "message"
    assert not (tmp_path / "ran").exists()


def test_a_site_that_is_not_in_the_terms_does_nothing(scene, ask, node):
    _, terms, server = scene
    stranger = node("stranger")
    code(ask(stranger, "train", order(terms, server)))
    assert not (stranger.store / "clients").exists()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SiteError("training", "It failed."), "training"),
        (RefusedError("HERE"), "message"),
        (VHLError("HERE is not readable."), "message"),
        (RuntimeError("out of memory at HERE"), "internal"),
    ],
    ids=repr,
)
def test_an_error_is_a_code_and_its_words_stay_in_the_log(scene, ask, tmp_path, error, expected):
    if not isinstance(error, SiteError):
        error.args = (str(error).replace("HERE", str(tmp_path)),)

    def fails(content: RecordDict, settings: NodeSettings) -> RecordDict:
        raise error

    assert code(ask(scene[0], "train", {}, by=answering(fails))) == expected
