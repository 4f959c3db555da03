from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from vhl.errors import VHLError
from vhl.experiment import Experiment
from vhl.rounds.clients import Order
from vhl.rounds.federation import Federation
from vhl.rounds.local import LocalClients, Shared, local
from vhl.rounds.simulation import Simulation
from vhl.runs.folder import RunFolder
from vhl.runs.record import Record
from vhl.session.session import Session
from vhl.session.together import Event, together

Run = Callable[..., Path]
Contents = dict[str, dict[str, Any]]
Make = Callable[..., list[Session]]

VARIANTS: dict[str, dict[str, Any]] = {
    "a": {},
    "b": {"seeds": {"model": 1, "sampling": 1, "batches": 1}},
    "c": {"algorithm": "fedprox", "objective": "plain", "rounds": 2},
    "d": {"engine": {"precision": "bf16"}, "clients_per_round": 1},
}


@pytest.fixture(scope="module")
def experiments(experiment: Experiment) -> list[Experiment]:
    """Two seeds of one experiment, a shorter one with other parts, and one in another precision."""
    return [experiment.with_(name=name, **{"rounds": 3, **own}) for name, own in VARIANTS.items()]


@pytest.fixture(scope="module")
def alone(
    experiments: list[Experiment],
    run_in: Run,
    content: Callable[[Path], dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Contents:
    """What each leaves when it runs alone, by name."""
    runs = tmp_path_factory.mktemp("alone")
    return {own.name: content(run_in(own, runs)) for own in experiments}


class _Held(Session):
    """Keeps what it gives out: what is closed is closed by someone, not by being forgotten."""

    def steps(self) -> Any:
        self.held = super().steps()
        return self.held


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def sessions(experiments: list[Experiment], data_dir: Path, tmp_path: Path, shared: Shared) -> Make:
    """Sessions of the experiments, or of others, that share lanes and data."""

    def make(own: Sequence[Experiment] = (), *, resume: bool = False, **options: Any) -> list[Session]:
        given = {"resume": resume, "data_dir": data_dir, "shared": shared, **options}
        return [_Held(experiment, tmp_path, **given) for experiment in own or experiments]

    return make


@pytest.fixture
def found(tmp_path: Path, content: Callable[[Path], dict[str, Any]]) -> Callable[[], Contents]:
    """What lies in the folders, by name."""
    return lambda: {folder.name: content(folder) for folder in tmp_path.iterdir()}


def story(events: Sequence[Event]) -> dict[str, list[Any]]:
    """By session: the rounds reported, and how it ended."""
    told: dict[str, list[Any]] = {}
    for session, event in events:
        what = event if event is None or isinstance(event, VHLError) else event.round
        told.setdefault(session.experiment.name, []).append(what)
    return told


WHOLE = {"a": [1, 2, 3, None], "b": [1, 2, 3, None], "c": [1, 2, None], "d": [1, 2, 3, None]}


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
def test_side_by_side_each_leaves_what_it_leaves_alone(
    sessions: Make, shared: Shared, alone: Contents, found: Callable[[], Contents], at_once: int
) -> None:
    events = list(together(sessions(), at_once))
    assert story(events) == WHOLE and found() == alone
    assert len(shared._lanes) == 2  # of two precisions
    running: set[str] = set()
    most = 0
    for session, event in events:
        name = session.experiment.name
        running = running - {name} if event is None else running | {name}
        most = max(most, len(running))
    assert most <= at_once and (most == 1) == (at_once == 1)
    neighbours = [event.side_by_side for _, event in events if isinstance(event, Record)]
    assert max(filter(None, neighbours)) == min(at_once, 4) and None not in neighbours
    if at_once == 1:
        assert list(story(events)) == ["a", "b", "c", "d"]


def test_sessions_that_share_nothing(
    experiments: list[Experiment],
    data_dir: Path,
    tmp_path: Path,
    alone: Contents,
    found: Callable[[], Contents],
) -> None:
    own = [Session(experiment, tmp_path, data_dir=data_dir) for experiment in experiments]
    assert story(list(together(iter(own), 2))) == WHOLE
    assert found() == alone


def test_nothing_to_run() -> None:
    assert list(together([], 3)) == []


# --- one that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at_once", "place"), [(1, 0), (2, 2), (3, 4)])
def test_one_that_fails_does_not_stop_the_others(
    experiments: list[Experiment],
    sessions: Make,
    alone: Contents,
    found: Callable[[], Contents],
    at_once: int,
    place: int,
) -> None:
    bad = experiments[0].with_(name="bad", training={"lr": 1e30})
    told = story(list(together(sessions([*experiments[:place], bad, *experiments[place:]]), at_once)))
    (error,) = told.pop("bad")
    assert isinstance(error, VHLError) and "Round 1: every client's model became infinite" in str(error)
    assert told == WHOLE
    contents = found()
    assert contents.pop("bad")["metrics.jsonl"] == []
    assert contents == alone


def test_one_that_cannot_begin(
    experiments: list[Experiment],
    sessions: Make,
    alone: Contents,
    found: Callable[[], Contents],
    tmp_path: Path,
) -> None:
    nowhere = experiments[0].with_(name="nowhere", data="npz:nowhere.npz")
    many = experiments[0].with_(name="many", clients_per_round=99)
    told = story(list(together(sessions([nowhere, *experiments, many]), 2)))
    assert "nowhere.npz" in str(told.pop("nowhere")[0]) and "99" in str(told.pop("many")[0])
    assert told == WHOLE and found() == alone  # and nothing of the two is left behind


class _Fails(LocalClients):
    """Clients whose second round does not come."""

    def train(self, orders: Sequence[Order], server: Any) -> Any:
        if orders[0].round == 1:
            raise VHLError("The second round of b does not come.")
        return super().train(orders, server)


def test_an_error_in_the_middle_keeps_what_was_done(
    sessions: Make, alone: Contents, found: Callable[[], Contents], data_dir: Path
) -> None:
    """It is reported once; with the cause gone the same run goes on to the same end."""

    def federate(experiment: Experiment) -> Federation:
        made = local(experiment, data_dir)
        assert isinstance(made.clients, LocalClients)
        failing = _Fails(made.setup, made.clients.data, made.lanes)
        return replace(made, clients=failing) if experiment.name == "b" else made

    told = story(list(together(sessions(federate=federate), 2)))
    assert told["b"][0] == 1 and "second round of b" in str(told["b"][1]) and len(told["b"]) == 2
    assert {name: told[name] for name in "acd"} == {name: WHOLE[name] for name in "acd"}
    contents = found()
    assert {name: contents[name] for name in "acd"} == {name: alone[name] for name in "acd"}
    again = story(list(together(sessions(resume=True), 2)))
    assert again == {"a": [None], "b": [2, 3, None], "c": [None], "d": [None]}
    assert found() == alone


def test_the_same_folder_twice(experiments: list[Experiment], sessions: Make, tmp_path: Path) -> None:
    """As of two experiments with one name: one runs, the other is refused."""
    one = experiments[2]
    for at_once in (1, 2):
        own = one.with_(name=f"twice{at_once}")
        told = story(list(together(sessions([own, own]), at_once)))[own.name]
        (error,) = [event for event in told if isinstance(event, VHLError)]
        assert own.name in str(error)
        assert [event for event in told if not isinstance(event, VHLError)] == [1, 2, None]


# --- stopping ------------------------------------------------------------------------------------------


def rounds_saved(folder: Path) -> dict[str, int]:
    """By run: the round of its checkpoint."""
    manifests = {run.name: RunFolder(run).manifest() for run in folder.iterdir()}
    return {name: 0 if manifest is None else manifest["round"] for name, manifest in manifests.items()}


@pytest.mark.parametrize(("at_once", "count"), [(1, 0), (1, 6), (2, 1), (3, 4), (3, 7)])
def test_closing_saves_what_was_done(
    sessions: Make,
    alone: Contents,
    shared: Shared,
    found: Callable[[], Contents],
    tmp_path: Path,
    at_once: int,
    count: int,
) -> None:
    own = sessions()
    with closing(together(own, at_once)) as events:
        told = story(list(islice(events, count)))
    reported = {name: max(own for own in events if own is not None) for name, events in told.items()}
    saved = rounds_saved(tmp_path)
    # one that had begun has no round yet; of the others every round that was reported is saved
    assert {name: round_ for name, round_ in saved.items() if round_} == reported
    assert len(saved) <= len(reported) + at_once
    assert not any(lanes._waiting for lanes in shared._lanes.values())  # no job is left
    for name in saved:  # nor a folder held
        folder = RunFolder(tmp_path / name)
        folder.acquire()
        folder.release()
    list(together(sessions(resume=True), 2))
    assert found() == alone


@pytest.mark.parametrize(
    ("at_once", "owner", "method", "call", "late"),
    [
        (3, Simulation, "_land", 1, False),
        (2, Simulation, "_land", 4, True),
        (3, Simulation, "_launch", 4, True),
        (2, RunFolder, "append", 4, False),
        (3, RunFolder, "append", 5, True),
        (2, RunFolder, "save_state", 2, False),
        (2, RunFolder, "begin", 2, False),
    ],
)
def test_ctrl_c_anywhere_goes_on_to_the_same_end(
    sessions: Make,
    alone: Contents,
    found: Callable[[], Contents],
    tmp_path: Path,
    stopped: Any,
    at_once: int,
    owner: type,
    method: str,
    call: int,
    late: bool,
) -> None:
    """It comes in the middle of one run; the others beside it are saved as well."""
    told: list[Event] = []
    with stopped(owner, method, call, late=late):
        told.extend(together(sessions(), at_once))
    saved = rounds_saved(tmp_path)
    for name, events in story(told).items():
        assert saved[name] >= max(events)
    list(together(sessions(resume=True), at_once))
    assert found() == alone


class _Full(RunFolder):
    """A folder on a full disk."""

    def save_state(self, *_: Any) -> None:
        raise VHLError("No space left on device.")


def test_one_that_cannot_be_saved_does_not_cost_the_others(sessions: Make, tmp_path: Path) -> None:
    """Its disk is full at the moment of Ctrl-C."""
    own = sessions()
    own[0].folder = _Full(own[0].folder.path)
    events = together(own, 3)
    assert story(list(islice(events, 3))) == {"a": [1], "b": [1], "c": [1]}
    with pytest.raises(VHLError, match="No space left") as caught:
        events.close()
    saved = rounds_saved(tmp_path)
    del caught  # not before: whatever it holds is closed with it
    assert saved == {"a": 0, "b": 1, "c": 1}


def test_checkpoints_of_all_take_a_small_share_of_the_time(
    experiments: list[Experiment], sessions: Make, slow_saving: list[float]
) -> None:
    """A round takes 10 seconds; two checkpoints of 1 are worth 67, less what the other's took meanwhile."""
    pair = [own.with_(rounds=12, checkpoint_every=None) for own in experiments[:2]]
    saved: dict[str, list[int]] = {own.name: [] for own in pair}
    for session, record in together(sessions(pair), at_once=2):
        if record is not None:
            manifest = session.folder.manifest()
            assert manifest is not None
            saved[session.experiment.name].append(manifest["round"])
            slow_saving[0] += 5.0
    assert saved["a"] == [1] * 7 + [8] * 4 + [12]
    assert saved["b"] == [1] * 7 + [8] * 4 + [12]
