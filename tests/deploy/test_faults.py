"""Sites that die, come back, answer late or send what they should not; a server that dies."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict

from vhl.data.images import ImageSet
from vhl.deploy import client_app
from vhl.deploy.wire import to_text
from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.rounds.simulation import Simulation
from vhl.session.session import Session
from vhl.virtual.sets import virtual_set

Spoil = Callable[[RecordDict], None]


def answering(deployment: Any, site: int, change: Callable[[Message, Message], Message | None]) -> None:
    """Let a site's answers to training be changed: a function of the message and the true reply."""
    node = 1000 + site

    def answer(message: Message, context: Any) -> Message | None:
        reply = client_app.app(message, context)
        return change(message, reply) if message.metadata.message_type == "train" else reply

    deployment.grid.answers[node] = answer


def spoiling(deployment: Any, site: int, spoil: Spoil) -> None:
    def change(message: Message, reply: Message) -> Message:
        content = RecordDict(dict(reply.content))
        spoil(content)
        return Message(content, reply_to=message)

    answering(deployment, site, change)


def round_of(message: Message) -> int:
    return int(json.loads(message.content["order"]["json"])["round"])


# --- hostile or broken replies -------------------------------------------------------------------------


def array(content: RecordDict, name: str, make: Callable[[np.ndarray], Array]) -> None:
    """Put another array in place of one."""
    arrays = dict(content["update"])
    arrays[name] = make(arrays[name].numpy())
    content["update"] = ArrayRecord(arrays)


def said(content: RecordDict, **values: Any) -> None:
    content["report"] = to_text({**json.loads(content["report"]["json"]), **values})


def lying(values: np.ndarray) -> Array:
    """It says what is expected, and holds one number."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(1, np.float32))
    return Array(str(values.dtype), values.shape, "numpy.ndarray", stream.getvalue())


def boasting(values: np.ndarray) -> Array:
    """The bytes claim to be what is expected, and there are too few of them."""
    good = Array(values)
    return Array(good.dtype, good.shape, good.stype, good.data[:-40])


SPOILED: dict[str, Spoil] = {
    "one number for a vector": lambda c: array(c, "parameters", lambda v: Array(np.ones(1, np.float32))),
    "more numbers": lambda c: array(c, "parameters", lambda v: Array(np.append(v, v))),
    "another type": lambda c: array(c, "parameters", lambda v: Array(v.astype(np.float64))),
    "lying description": lambda c: array(c, "parameters", lying),
    "too few bytes": lambda c: array(c, "parameters", boasting),
    "NaN": lambda c: array(c, "parameters", lambda v: Array(np.full_like(v, np.nan))),
    "infinite buffers": lambda c: array(c, "buffers", lambda v: Array(np.full_like(v, np.inf))),
    "infinite message": lambda c: array(c, "message.control_change", lambda v: Array(v * np.inf)),
    "no message": lambda c: c.__setitem__("update", ArrayRecord({"parameters": c["update"]["parameters"]})),
    "an array too many": lambda c: c["update"].__setitem__("more", Array(np.zeros(1, np.float32))),
    "no arrays": lambda c: c.__delitem__("update"),
    "no report": lambda c: c.__delitem__("report"),
    "another round": lambda c: said(c, round=7),
    "another run": lambda c: said(c, run="other"),
    "negative count": lambda c: said(c, samples=-5),
    "more samples": lambda c: said(c, samples=10**9),
    "a count that is no number": lambda c: said(c, samples="many"),
    "an endless loss": lambda c: said(c, totals={"natural": float("inf")}),
    "other totals": lambda c: said(c, totals={"natural_hits": 1.0}),
    "no JSON": lambda c: c["report"].__setitem__("json", "{"),
    "nothing": lambda c: c.clear(),
    "an unknown complaint": lambda c: c.__setitem__(
        "complaint", to_text({"code": "x" * 1000, "sentence": ""})
    ),
}


_silent: dict[str, torch.Tensor] = {}


@pytest.fixture
def without_site_1(experiment: Experiment, deploy: Any) -> torch.Tensor:
    """The model of two rounds in which site 1 never answers."""
    if "model" not in _silent:
        deployment = deploy([{"name": f"s{part}", "data": f"part:{part}"} for part in range(3)])
        answering(deployment, 1, lambda message, reply: None)
        folder = deployment.run(experiment.with_(rounds=2, name="silent"), round_timeout=0.3)
        _silent["model"] = folder.load_state(folder.manifest()).server.parameters
    return _silent["model"]


@pytest.mark.parametrize("kind", SPOILED)
def test_a_bad_reply_never_reaches_the_average(
    kind: str, experiment: Experiment, deployment: Any, without_site_1: torch.Tensor
) -> None:
    spoiling(deployment, 1, SPOILED[kind])
    folder = deployment.run(experiment.with_(rounds=2))
    assert [record.left_out for record in folder.records()] == [[1], [1]]
    assert torch.equal(folder.load_state(folder.manifest()).server.parameters, without_site_1)
    named = [note for note in deployment.notes if note.startswith("Site s1: ")]
    assert len(named) == 2 and not any("/" in note for note in named)


def test_what_cannot_be_read_at_all_leaves_its_site_out(
    experiment: Experiment, deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when Flower itself fails over the bytes of one reply."""
    pull = deployment.grid.pull_messages

    def failing(numbers: Any) -> Any:
        found = pull(numbers)
        if any(reply.metadata.src_node_id == 1001 and "update" in reply.content for reply in found):
            raise ValueError("no such object")
        return found

    def stamped(message: Message, reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = 1001
        return reply

    answering(deployment, 1, stamped)
    monkeypatch.setattr(deployment.grid, "pull_messages", failing)
    folder = deployment.run(experiment.with_(rounds=1))
    assert folder.records()[0].left_out == [1]
    assert any("s1 sent what cannot be read" in note for note in deployment.notes)


def test_a_node_with_anothers_name_is_refused(experiment: Experiment, deploy: Any) -> None:
    names = [("s0", 0), ("s1", 1), ("s1", 2)]
    deployment = deploy([{"name": name, "data": f"part:{part}"} for name, part in names])
    folder = deployment.run(experiment.with_(rounds=1), sites=2)
    assert folder.data()["sites"] == ["s0", "s1"]
    assert any("s1 is there already" in note for note in deployment.notes)


@pytest.mark.parametrize(
    "facts",
    [
        {"train": [-1] * 10},
        {"name": "../x"},
        {"sums": [10**15]},
        {"classes": []},
        {"shape": [8, 8]},
        {"x": 1},
    ],
    ids=str,
)
def test_a_node_that_describes_its_data_wrongly_is_refused(
    facts: dict[str, Any], experiment: Experiment, deployment: Any
) -> None:
    def answer(message: Message, context: Any) -> Message:
        reply = client_app.app(message, context)
        if message.metadata.message_type == "query.hello":
            reply.content["facts"] = to_text({**json.loads(reply.content["facts"]["json"]), **facts})
        return reply

    deployment.grid.answers[1002] = answer
    folder = deployment.run(experiment.with_(rounds=1), sites=2)
    assert folder.data()["sites"] == ["s0", "s1"]
    assert any(note.startswith("Node 1002 is refused") for note in deployment.notes)


@pytest.mark.parametrize("change", ["more", "negative"])
def test_counts_that_do_not_add_up_are_refused(change: str, experiment: Experiment, deployment: Any) -> None:
    def answer(message: Message, context: Any) -> Message:
        reply = client_app.app(message, context)
        if message.metadata.message_type == "evaluate":
            seen = dict(reply.content["seen"])
            counts = seen["test.0"].numpy()
            counts = counts + 1 if change == "more" else counts + np.array([[1, -1] + [0] * 18] * 10)
            reply.content["seen"] = ArrayRecord({**seen, "test.0": Array(counts)})
        return reply

    deployment.grid.answers[1002] = answer
    folder = deployment.run(experiment.with_(rounds=2), test="")
    assert any("s2: its reply is refused, test.0" in note for note in deployment.notes)
    assert folder.records()[0].accuracy is not None
    hellos = [m for m in deployment.grid.sent if m.metadata.message_type == "query.hello"]
    assert [m.metadata.dst_node_id for m in hellos] == [1000, 1001, 1002, 1002]  # it has to say it again


def test_a_round_says_where_not_all_test_images_were_counted(experiment: Experiment, deployment: Any) -> None:
    """And such a round is not the best by validation, however well it does on the images of the others."""

    def answer(message: Message, context: Any) -> Message | None:
        reply = client_app.app(message, context)
        last = message.metadata.message_type == "evaluate" and round_of(message) == 3
        return None if last else reply

    deployment.grid.answers[1001] = answer
    folder = deployment.run(experiment.with_(data={"validation": 0.2}), test="", round_timeout=0.3)
    records, counted = folder.records(), [sum(own["test"]) for own in folder.data()["deployment"]["facts"]]
    assert [record.tested for record in records] == [None, None, counted[0] + counted[2]]
    assert [record.validation_accuracy is None for record in records] == [False, False, True]
    said = [note for note in deployment.notes if note.startswith("round ")]
    assert f"% of {records[2].tested} of {sum(counted)} test images" in said[2]
    assert "test images" not in said[1]
    assert folder.manifest()["best"]["round"] < 3


# --- sites that go and come ----------------------------------------------------------------------------


def test_a_site_that_dies_is_left_out_and_takes_part_again_with_its_state(
    experiment: Experiment, deployment: Any, tmp_path: Path
) -> None:
    """As in a simulation in which that client's second round came to nothing."""

    def dying(message: Message, reply: Message) -> Message | None:
        return None if round_of(message) == 1 else reply

    answering(deployment, 1, dying)
    folder = deployment.run(experiment.with_(rounds=4), round_timeout=0.3)
    assert [record.left_out for record in folder.records()] == [[], [1], [], []]
    orders = [m for m in deployment.grid.sent if m.metadata.message_type == "train"]
    states = [
        json.loads(m.content["order"]["json"])["state"] for m in orders if m.metadata.dst_node_id == 1001
    ]
    assert states == [None, 0, 0, 2]  # what it kept in round 2 does not count, for nobody got its reply
    assert not any("lost" in note for note in deployment.notes)


def test_a_site_that_has_gone_is_not_asked_until_it_is_back(experiment: Experiment, deployment: Any) -> None:
    def leaving(message: Message, reply: Message) -> Message:
        if round_of(message) == 1:
            deployment.grid.present.discard(1001)
        if round_of(message) == 3:
            deployment.grid.present.add(1001)
        return reply

    answering(deployment, 0, leaving)
    folder = deployment.run(experiment.with_(rounds=5))
    assert [record.left_out for record in folder.records()] == [[], [1], [1], [1], []]
    assert [n for n in deployment.notes if n.startswith("Site s1 has")] == [
        deployment.notes[1],
        "Site s1 has gone.",
        deployment.notes[1],
    ]


def test_a_site_that_comes_too_late_is_told_to_take_no_part(experiment: Experiment, deployment: Any) -> None:
    def joining(message: Message, reply: Message) -> Message:
        deployment.grid.present.add(1002)
        return reply

    deployment.grid.present.discard(1002)
    answering(deployment, 0, joining)
    folder = deployment.run(experiment.with_(rounds=2), sites=2)
    assert folder.data()["sites"] == ["s0", "s1"]
    assert [note for note in deployment.notes if "s2" in note] == [
        "Site s2 has come, but takes no part: the run was begun without it."
    ]


def test_a_site_whose_data_have_changed_is_refused(experiment: Experiment, deployment: Any) -> None:
    def leaving(message: Message, reply: Message) -> Message:
        deployment.grid.present.discard(1001)
        if round_of(message) == 1:
            deployment.grid.contexts[1001].node_config["data"] = "part:0"
            deployment.grid.present.add(1001)
        return reply

    answering(deployment, 0, leaving)
    folder = deployment.run(experiment.with_(rounds=3))
    assert folder.records()[2].left_out == [1]
    assert any("data of site s1 have changed" in note for note in deployment.notes)


@pytest.mark.parametrize(
    ("test", "asked"),
    [("", ["train", "evaluate", "train", "evaluate"]), ("experiment", ["train", "train", "train"])],
    ids=["seen in evaluation", "seen in training"],
)
def test_a_site_whose_images_change_takes_no_further_part(
    test: str, asked: list[str], experiment: Experiment, deployment: Any
) -> None:
    """Neither in training nor in evaluation: what it holds out now may be what it trained on."""

    def changing(message: Message, reply: Message) -> Message:
        if round_of(message) == 1:  # the reply is made already, and of the old ones
            deployment.grid.contexts[1001].node_config["data"] = "part:0"
        return reply

    answering(deployment, 1, changing)
    folder = deployment.run(experiment.with_(rounds=4), test=test)
    assert [record.left_out for record in folder.records()] == [[], [], [1], [1]]
    own = [m.metadata.message_type for m in deployment.grid.sent if m.metadata.dst_node_id == 1001]
    assert own == ["query.hello", *asked, "query.hello"]
    refused = [note for note in deployment.notes if "refused" in note]
    assert "Site s1: its reply is refused, it speaks of" in refused[0]
    assert "the data of site s1 have changed since the run began" in refused[1]


def test_a_site_that_lost_its_state_begins_anew_and_says_so(experiment: Experiment, deployment: Any) -> None:
    def losing(message: Message, reply: Message) -> Message:
        for file in (deployment.folder / "s1" / "clients").rglob("*.safetensors"):
            file.unlink()
        return reply

    answering(deployment, 1, losing)
    folder = deployment.run(experiment.with_(rounds=2))
    assert folder.records()[1].left_out == []
    assert "Site s1 had lost its state and began anew." in deployment.notes


def test_too_few_sites_stop_the_run_with_a_checkpoint_to_continue_from(
    experiment: Experiment, deployment: Any, tmp_path: Path
) -> None:
    def dying(message: Message, reply: Message) -> Message | None:
        return None if round_of(message) == 1 else reply

    for site in (1, 2):
        answering(deployment, site, dying)
    with pytest.raises(VHLError, match=r"Round 2: 1 of the 2 sites needed answered within 0.5 s"):
        deployment.run(experiment, min_sites=2, round_timeout=0.2, wait=0.5)
    for node in (1001, 1002):
        deployment.grid.answers[node] = client_app.app
    folder = deployment.run(experiment, resume=True)
    simulation = Simulation(experiment, tmp_path / "server")
    list(simulation)
    assert torch.equal(
        folder.load_state(folder.manifest()).server.parameters, simulation.state.server.parameters
    )


def test_sites_that_do_not_come(experiment: Experiment, deployment: Any) -> None:
    with pytest.raises(VHLError, match=r"3 of 4 sites came within 0.2 s \(s0, s1, s2\)"):
        deployment.run(experiment, sites=4, wait=0.2)
    assert not (deployment.folder / "runs" / "run" / "experiment.toml").exists()


# --- a server that dies --------------------------------------------------------------------------------


def test_a_run_goes_on_where_the_server_left_it(
    experiment: Experiment, deploy: Any, deployment: Any, tmp_path: Path
) -> None:
    """The sites have gone one round further than the checkpoint; they go back with the server."""

    class Killed(BaseException):
        pass

    def kill(message: Message, reply: Message) -> Message:
        if round_of(message) == 2:
            raise Killed
        return reply

    answering(deployment, 2, kill)
    with pytest.raises(Killed):
        deployment.run(experiment.with_(rounds=4, checkpoint_every=1))
    deployment.grid.answers[1002] = client_app.app
    folder = deployment.run(experiment.with_(rounds=4, checkpoint_every=1), resume=True)
    simulation = Simulation(experiment.with_(rounds=4), tmp_path / "server")
    list(simulation)
    assert torch.equal(
        folder.load_state(folder.manifest()).server.parameters, simulation.state.server.parameters
    )
    assert [record.round for record in folder.records()] == [1, 2, 3, 4]


def test_a_run_that_continues_waits_for_sites_that_come_late_but_not_for_ever(
    experiment: Experiment, deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.run(experiment.with_(rounds=1))
    looks = itertools.count()

    def slowly() -> list[int]:
        """One more of the first two sites every third look; the last one never."""
        return [1000, 1001][: next(looks) // 3]

    monkeypatch.setattr(deployment.grid, "get_node_ids", slowly)
    folder = deployment.run(experiment.with_(rounds=2), resume=True, wait=0.3)
    assert [record.left_out for record in folder.records()] == [[], [2]]


def test_a_run_that_exists_is_continued_by_flower(experiment: Experiment, deployment: Any) -> None:
    """By the words of `flwr run`: those of `vhl run` mean nothing on a server."""
    deployment.run(experiment.with_(rounds=1))
    with pytest.raises(VHLError) as found:
        deployment.run(experiment.with_(rounds=1))
    sentence = str(found.value)
    assert "flwr run app vhl --run-config 'resume=true'" in sentence and "app/experiment.toml" in sentence
    assert str(deployment.folder / "runs" / "run") in sentence and "--resume" not in sentence


def test_a_simulation_is_no_run_of_sites(experiment: Experiment, deployment: Any, tmp_path: Path) -> None:
    list(Session(experiment, tmp_path / "runs", data_dir=tmp_path))
    with pytest.raises(VHLError, match="is no run of sites"):
        deployment.run(experiment.with_(rounds=4), resume=True)


# --- the virtual set -----------------------------------------------------------------------------------


def test_a_site_whose_processor_rounds_differently_gets_the_servers_set_once(
    experiment: Experiment, deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounded(*key: Any) -> ImageSet:
        found = virtual_set(*key)
        return ImageSet(found.images ^ 1, found.labels)

    monkeypatch.setattr("vhl.deploy.site.virtual_set", rounded)
    folder = deployment.run(experiment)
    kinds = [message.metadata.message_type for message in deployment.grid.sent]
    assert kinds.count("query.virtual") == 3
    assert [record.left_out for record in folder.records()] == [[], [], []]


def test_a_small_site_may_wait_for_the_set(experiment: Experiment, deploy: Any, tmp_path: Path) -> None:
    deployment = deploy(
        [{"name": f"s{part}", "data": f"part:{part}", "virtual": "receive"} for part in range(3)]
    )
    folder = deployment.run(experiment)
    kinds = [message.metadata.message_type for message in deployment.grid.sent]
    assert kinds.count("query.virtual") == 3
    simulation = Simulation(experiment, tmp_path / "server")
    list(simulation)
    assert torch.equal(
        folder.load_state(folder.manifest()).server.parameters, simulation.state.server.parameters
    )
