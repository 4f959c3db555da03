"""Sites that die, come back, answer late or send what they should not; a server that dies."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.error import Error

from vhl.deploy.wire import to_text
from vhl.errors import VHLError
from vhl.session.session import Session


def left_out(folder: Any) -> list[list[int]]:
    return [record.left_out for record in folder.records()]


# --- hostile or broken replies -------------------------------------------------------------------------


def array(name: str, make: Callable[[np.ndarray], Array], record: str = "update") -> Callable[..., None]:
    """Put another array in place of one."""

    def spoil(content: RecordDict) -> None:
        arrays = dict(content[record])
        content[record] = ArrayRecord({**arrays, name: make(arrays[name].numpy())})

    return spoil


def said(record: str = "report", **values: Any) -> Callable[[RecordDict], None]:
    """Put other words in place of some."""

    def spoil(content: RecordDict) -> None:
        content[record] = to_text({**json.loads(content[record]["json"]), **values})

    return spoil


def lying(values: np.ndarray) -> Array:
    """It says what is expected, and holds one number."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(1, np.float32))
    return Array(str(values.dtype), values.shape, "numpy.ndarray", stream.getvalue())


def boasting(values: np.ndarray) -> Array:
    """The bytes claim to be what is expected, and there are too few of them."""
    good = Array(values)
    return Array(good.dtype, good.shape, good.stype, good.data[:-40])


SPOILED: dict[str, Callable[[RecordDict], object]] = {
    "one number for a vector": array("parameters", lambda v: Array(np.ones(1, np.float32))),
    "more numbers": array("parameters", lambda v: Array(np.append(v, v))),
    "another type": array("parameters", lambda v: Array(v.astype(np.float64))),
    "lying description": array("parameters", lying),
    "too few bytes": array("parameters", boasting),
    "NaN": array("parameters", lambda v: Array(np.full_like(v, np.nan))),
    "infinite buffers": array("buffers", lambda v: Array(np.full_like(v, np.inf))),
    "infinite message": array("message.control_change", lambda v: Array(np.full_like(v, np.inf))),
    "no message": lambda c: c.__setitem__("update", ArrayRecord({"parameters": c["update"]["parameters"]})),
    "an array too many": lambda c: c["update"].__setitem__("more", Array(np.zeros(1, np.float32))),
    "no arrays": lambda c: c.__delitem__("update"),
    "no report": lambda c: c.__delitem__("report"),
    "another round": said(round=70),
    "another run": said(run="other"),
    "negative count": said(samples=-5),
    "more samples": said(samples=10**9),
    "a count that is no number": said(samples="many"),
    "an endless loss": said(totals={"natural": float("inf")}),
    "other totals": said(totals={"natural_hits": 1.0}),
    "no JSON": lambda c: c["report"].__setitem__("json", "{"),
    "nothing": lambda c: c.clear(),
    "an unknown complaint": lambda c: c.__setitem__(
        "complaint", to_text({"code": "x" * 1000, "sentence": ""})
    ),
    "what Flower cannot read": lambda c: c.__setitem__("unreadable", to_text({})),
}


def test_a_bad_reply_never_reaches_the_average(experiment, deploy, round_of, state_of, tmp_path):
    """Another kind of bad reply every round; the model is that of a run in which the site never answers."""
    experiment, models = experiment.with_(rounds=len(SPOILED), checkpoint_every=len(SPOILED)), []

    def spoiled(message: Message, reply: Message) -> Message:
        content = RecordDict(dict(reply.content))
        list(SPOILED.values())[round_of(message)](content)
        return Message(content, reply_to=message)

    def silent(message: Message, reply: Message) -> Message:
        return Message(Error(5, "node unavailable"), reply_to=message)

    for name, change in {"spoiled": spoiled, "silent": silent}.items():
        deployment = deploy([{"name": f"s{part}", "data": f"part:{part}"} for part in range(3)])
        deployment.change(1, change)
        folder = deployment.run(experiment.with_(name=name))
        assert dict(zip(SPOILED, left_out(folder), strict=True)) == {kind: [1] for kind in SPOILED}
        models.append(state_of(folder).server.parameters)
        about = [note for note in deployment.notes if note.startswith("Site s1") and " has come" not in note]
        assert len(about) >= len(SPOILED) and not any("/" in note for note in about)
    assert models[0].equal(models[1])


def test_a_site_that_wants_a_virtual_set_where_there_is_none_is_left_out(experiment, deployment):
    wish = {"complaint": to_text({"code": "virtual", "sentence": "Send it."})}
    deployment.spoil(1, lambda content: content.update(wish))
    assert left_out(deployment.run(experiment.with_(objective="plain", rounds=1))) == [[1]]
    assert "Site s1: Send it. (virtual)" in deployment.notes


def test_a_node_with_anothers_name_is_refused(experiment, deploy):
    names = [("s0", 0), ("s1", 1), ("s1", 2)]
    deployment = deploy([{"name": name, "data": f"part:{part}"} for name, part in names])
    folder = deployment.run(experiment.with_(rounds=1), sites=2)
    assert folder.data()["sites"] == ["s0", "s1"]
    assert any("s1 is there already" in note for note in deployment.notes)


@pytest.mark.parametrize("facts", [{"train": [-1] * 10}, {"name": "../x"}, {"x": 1}], ids=str)
def test_a_node_that_describes_its_data_wrongly_is_refused(facts, experiment, deployment):
    deployment.spoil(2, said("facts", **facts), "query.hello")
    folder = deployment.run(experiment.with_(rounds=1), sites=2)
    assert folder.data()["sites"] == ["s0", "s1"]
    assert any(note.startswith("Node 1002 is refused") for note in deployment.notes)


COUNTS: dict[str, Callable[[np.ndarray], Array]] = {
    "more": lambda counts: Array(counts + 1),
    "negative": lambda counts: Array(counts + np.array([[1, -1] + [0] * 18] * 10)),
}


@pytest.mark.parametrize("kind", COUNTS)
def test_counts_that_do_not_add_up_are_refused(kind, experiment, deployment):
    deployment.spoil(2, array("test.0", COUNTS[kind], "seen"), "evaluate")
    folder = deployment.run(experiment.with_(rounds=2), test="")
    assert any("s2: its reply is refused, test.0" in note for note in deployment.notes)
    assert folder.records()[0].accuracy is not None
    assert [deployment.asked(site).count("query.hello") for site in range(3)] == [
        1,
        1,
        2,
    ]  # it has to say it again


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (array("counts", lambda v: Array(v + 1), "seen"), "it counts other images than the site has"),
        (array("sums", lambda v: Array(v[:, :-1]), "seen"), "sums is"),
        (said(round=7), "it answers another question"),
    ],
    ids=["other counts", "another shape", "another question"],
)
def test_moments_that_do_not_fit_are_refused(spoil, words, experiment, deployment):
    deployment.spoil(2, spoil, "query.moments")
    deployment.run(experiment.with_(rounds=1, algorithm="ccvr"))
    assert any(f"s2: its reply is refused, {words}" in note for note in deployment.notes)


def test_a_round_says_where_not_all_test_images_were_counted(experiment, deployment, round_of):
    """And such a round is not the best by validation, however well it does on the images of the others."""
    deployment.change(1, lambda message, reply: None if round_of(message) == 3 else reply, "evaluate")
    folder = deployment.run(experiment.with_(data={"validation": 0.2}), test="", round_timeout=0.3)
    records, counted = folder.records(), [sum(own["test"]) for own in folder.data()["deployment"]["facts"]]
    assert [record.tested for record in records] == [None, None, counted[0] + counted[2]]
    assert [record.validation_accuracy is None for record in records] == [False, False, True]
    said = [note for note in deployment.notes if note.startswith("round ")]
    assert f"% of {records[2].tested} of {sum(counted)} test images" in said[2]
    assert "test images" not in said[1]
    assert folder.manifest()["best"]["round"] < 3


# --- sites that go and come ----------------------------------------------------------------------------


def test_a_site_that_dies_is_left_out_and_takes_part_again_with_its_state(experiment, deployment, round_of):
    """As in a simulation in which that client's second round came to nothing."""
    deployment.change(1, lambda message, reply: None if round_of(message) == 1 else reply)
    folder = deployment.run(experiment.with_(rounds=4), round_timeout=0.3)
    assert left_out(folder) == [[], [1], [], []]
    orders = [m for m in deployment.grid.sent if m.metadata.message_type == "train"]
    states = [
        json.loads(m.content["order"]["json"])["state"] for m in orders if m.metadata.dst_node_id == 1001
    ]
    assert states == [None, 0, 0, 2]  # what it kept in round 2 does not count, for nobody got its reply
    assert not any("lost" in note for note in deployment.notes)


def test_a_site_that_has_gone_is_not_asked_until_it_is_back(experiment, deployment, round_of):
    def leaving(message: Message, reply: Message) -> Message:
        if round_of(message) == 1:
            deployment.grid.present.discard(1001)
        if round_of(message) == 3:
            deployment.grid.present.add(1001)
        return reply

    deployment.change(0, leaving)
    assert left_out(deployment.run(experiment.with_(rounds=5))) == [[], [1], [1], [1], []]
    come = deployment.notes[1]
    assert [n for n in deployment.notes if n.startswith("Site s1 has")] == [come, "Site s1 has gone.", come]


def test_a_site_that_comes_too_late_is_told_to_take_no_part(experiment, deployment):
    def joining(message: Message, reply: Message) -> Message:
        deployment.grid.present.add(1002)
        return reply

    deployment.grid.present.discard(1002)
    deployment.change(0, joining)
    folder = deployment.run(experiment.with_(rounds=2), sites=2)
    assert folder.data()["sites"] == ["s0", "s1"]
    assert [note for note in deployment.notes if "s2" in note] == [
        "Site s2 has come, but takes no part: the run was begun without it."
    ]


def test_a_site_whose_data_have_changed_is_refused(experiment, deployment, round_of):
    def leaving(message: Message, reply: Message) -> Message:
        deployment.grid.present.discard(1001)
        if round_of(message) == 1:
            deployment.grid.contexts[1001].node_config["data"] = "part:0"
            deployment.grid.present.add(1001)
        return reply

    deployment.change(0, leaving)
    assert left_out(deployment.run(experiment.with_(rounds=3)))[2] == [1]
    assert any("data of site s1 have changed" in note for note in deployment.notes)


@pytest.mark.parametrize(
    ("test", "asked"),
    [("", ["train", "evaluate", "train", "evaluate"]), ("experiment", ["train", "train", "train"])],
    ids=["seen in evaluation", "seen in training"],
)
def test_a_site_whose_images_change_takes_no_further_part(test, asked, experiment, deployment, round_of):
    """Neither in training nor in evaluation: what it holds out now may be what it trained on."""

    def changing(message: Message, reply: Message) -> Message:
        if round_of(message) == 1:  # the reply is made already, and of the old ones
            deployment.grid.contexts[1001].node_config["data"] = "part:0"
        return reply

    deployment.change(1, changing)
    assert left_out(deployment.run(experiment.with_(rounds=4), test=test)) == [[], [], [1], [1]]
    assert deployment.asked(1) == ["query.hello", *asked, "query.hello"]
    refused = [note for note in deployment.notes if "refused" in note]
    assert "Site s1: its reply is refused, it speaks of" in refused[0]
    assert "the data of site s1 have changed since the run began" in refused[1]


def test_a_site_that_lost_its_state_begins_anew_and_says_so(experiment, deployment):
    def losing(message: Message, reply: Message) -> Message:
        for file in (deployment.folder / "s1" / "clients").rglob("*.safetensors"):
            file.unlink()
        return reply

    deployment.change(1, losing)
    assert left_out(deployment.run(experiment.with_(rounds=2))) == [[], []]
    assert "Site s1 had lost its state and began anew." in deployment.notes


def test_too_few_sites_stop_the_run_with_a_checkpoint_to_continue_from(
    experiment, deployment, round_of, state_of
):
    for site in (1, 2):
        deployment.change(site, lambda message, reply: None if round_of(message) == 1 else reply)
    with pytest.raises(VHLError, match=r"Round 2: 1 of the 2 sites needed answered within 0.5 s"):
        deployment.run(experiment, min_sites=2, round_timeout=0.2, wait=0.5)
    deployment.mend(1, 2)
    found, expected = state_of(deployment.run(experiment, resume=True)), deployment.simulated(experiment)[0]
    assert found.server.parameters.equal(expected.server.parameters)


def test_sites_that_do_not_come(experiment, deployment):
    with pytest.raises(VHLError, match=r"3 of 4 sites came within 0.2 s \(s0, s1, s2\)"):
        deployment.run(experiment, sites=4, wait=0.2)
    assert not (deployment.folder / "runs" / "run" / "experiment.toml").exists()


# --- a server that dies --------------------------------------------------------------------------------


def test_a_run_goes_on_where_the_server_left_it(experiment, deployment, round_of, state_of):
    """The sites have gone one round further than the checkpoint; they go back with the server."""

    class Killed(BaseException):
        pass

    def kill(message: Message, reply: Message) -> Message:
        if round_of(message) == 2:
            raise Killed
        return reply

    experiment = experiment.with_(rounds=4, checkpoint_every=1)
    deployment.change(2, kill)
    with pytest.raises(Killed):
        deployment.run(experiment)
    deployment.mend(2)
    folder = deployment.run(experiment, resume=True)
    assert state_of(folder).server.parameters.equal(deployment.simulated(experiment)[0].server.parameters)
    assert [record.round for record in folder.records()] == [1, 2, 3, 4]


def test_a_run_that_continues_waits_for_sites_that_come_late_but_not_for_ever(experiment, deployment):
    """One more of the first two sites every third look; the last one never."""
    deployment.run(experiment.with_(rounds=1))
    looks = itertools.count()
    deployment.grid.look = lambda: [1000, 1001][: next(looks) // 3]
    folder = deployment.run(experiment.with_(rounds=2), resume=True, wait=2)
    assert left_out(folder) == [[], [2]]


def test_a_run_that_exists_is_continued_by_flower(experiment, deployment):
    """By the words of `flwr run`: those of `vhl run` mean nothing on a server."""
    deployment.run(experiment.with_(rounds=1))
    with pytest.raises(VHLError) as found:
        deployment.run(experiment.with_(rounds=1))
    sentence = str(found.value)
    assert "flwr run app vhl --run-config 'resume=true'" in sentence and "app/experiment.toml" in sentence
    assert str(deployment.folder / "runs" / "run") in sentence and "--resume" not in sentence


def test_a_simulation_is_no_run_of_sites(experiment, deployment, tmp_path):
    list(Session(experiment, tmp_path / "runs", data_dir=tmp_path))
    with pytest.raises(VHLError, match="is no run of sites"):
        deployment.run(experiment.with_(rounds=4), resume=True)


# --- the virtual set -----------------------------------------------------------------------------------


def test_sites_that_lack_the_virtual_set_get_it_once(experiment, deploy, state_of):
    """Here they wait for it; test_site.py has sites whose own set differs."""
    sites = [{"name": f"s{part}", "data": f"part:{part}", "virtual": "receive"} for part in range(3)]
    deployment = deploy(sites)
    folder = deployment.run(experiment)
    assert deployment.asked().count("query.virtual") == 3 and left_out(folder) == [[], [], []]
    expected, _ = deployment.simulated(experiment)
    assert state_of(folder).server.parameters.equal(expected.server.parameters)
