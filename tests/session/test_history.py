"""Earlier states of the learners: which are kept, which one is found, and what going back changes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from crodobo import CroDoBo, Query, SessionSettings, Source
from crodobo.core.prediction import Adaptation
from crodobo.data import Public
from crodobo.errors import NoEarlierState
from crodobo.guard.guard import Guard
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.session import history
from crodobo.session.checkpoint import NAME as CHECKPOINT
from crodobo.session.history import History
from crodobo.session.session import Session
from crodobo.views.augment import Augment

Open = Callable[..., Any]


@pytest.fixture
def open_session(source: Source, tmp_path: Path) -> Open:
    """A session that keeps the states after every second learned query."""
    public = Public(source, Augment(), "40 images", "quarters")
    options = CroDoBo.Settings(warmup=1, warmup_batch=8, parallel=False, threads=1, plain=True)
    settings = SessionSettings(options=options, query_size=8, checkpoint_every=1, log=tmp_path / "log.jsonl")

    @contextmanager
    def make(keep: int = 3, every: int = 2) -> Iterator[Session]:
        with Session.open(settings, public, tmp_path, history=History(keep, every)) as session:
            yield session

    return make


def state(session: Session) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in session.method.state().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def take(session: Session, seed: int, **options: Any) -> Tensor:
    images = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(seed))
    return session.take(Query(images), **options).prediction.probabilities


def kept(session: Session) -> list[int]:
    return [moment.query for moment in session.history.moments]


def test_the_last_states_are_kept_counted_in_learned_queries(
    open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(keep=3, every=2) as session:
        for seed in range(4):
            take(session, seed)
        assert kept(session) == [0, 2, 4]
        take(session, 4, adapt=False)
        with monkeypatch.context() as patched:
            patched.setattr(Guard, "before", lambda *_: Adaptation(predicted_only="few classes"))
            take(session, 5)
        take(session, 6)
        assert kept(session) == [0, 2, 4], "two of three queries were predicted only"
        take(session, 7)
        assert kept(session) == [2, 4, 8]


def test_the_memory_of_the_oldest_state_is_used_again(open_session: Open) -> None:
    def places(number: int) -> set[int]:
        return {value.data_ptr() for value in session.history.moments[number].state.state.values()}

    with open_session(keep=2, every=1) as session:
        for seed in range(2):
            take(session, seed)
        oldest = places(0)
        take(session, 2)
        assert places(-1) == oldest


def test_going_back_undoes_all_learning_since_and_the_session_goes_on_as_it_would_have(open_session: Open) -> None:
    with open_session(keep=4, every=2) as session:
        for seed in range(2):
            take(session, seed)
        before = state(session)
        following = take(session, 2)
        for seed in range(3, 6):
            take(session, seed)
        assert session.roll_back(to=2).query == 2
        assert equal(state(session), before)
        assert (kept(session), session.learned, session.counts.queries) == ([0, 2], 2, 6)
        assert torch.equal(take(session, 2), following)
        take(session, 3)
        assert kept(session) == [0, 2, 8], "numbers go on"
        session.roll_back(to=2)
        assert equal(state(session), before), "a kept state does not change with the learners"


def test_a_rollback_is_on_disk_and_in_the_log_and_receipts_go_on(open_session: Open, tmp_path: Path) -> None:
    with open_session(every=1) as session:
        for seed in range(3):
            take(session, seed)
        session.roll_back(queries=2)
        before = state(session)
        assert [path.name for path in tmp_path.glob("*.safetensors")] == [CHECKPOINT]
    with open_session() as session:
        assert equal(state(session), before)
        take(session, 3)
        assert kept(session) == [3]
    entries = [json.loads(line) for line in (tmp_path / LEDGER).read_text(encoding="utf-8").splitlines()]
    assert [entry["query"] for entry in entries if entry["kind"] == "query"] == [1, 2, 3, 4]
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(event["query"], event["to"]) for event in events if event["event"] == "rollback"] == [(3, 1)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, 4),  # the current state is no earlier one
        ({"queries": 1}, 4),
        ({"queries": 3}, 2),
        ({"to": 3}, 2),
        ({"to": 100}, 6),
        ({"seconds": 15}, 4),
        ({"seconds": 25}, 2),
    ],
)
def test_the_newest_state_that_is_old_enough_is_found(
    wanted: dict[str, Any], found: int, open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States 2, 4 and 6 were kept after 10, 20 and 30 seconds. Now it is 36."""
    clock = [0.0]
    monkeypatch.setattr(history, "time", SimpleNamespace(monotonic=lambda: clock[-1]))
    with open_session(keep=3, every=2) as session:
        for number in range(1, 7):
            clock.append(5.0 * number)
            take(session, number)
        clock.append(36.0)
        assert kept(session) == [2, 4, 6]
        assert session.history.find(6, **wanted).query == found


def test_without_a_wish_each_rollback_goes_one_state_further(open_session: Open) -> None:
    with open_session(keep=3, every=2) as session:
        for seed in range(5):
            take(session, seed)
        assert [session.roll_back().query for _ in range(3)] == [4, 2, 0]
        with pytest.raises(NoEarlierState, match="No kept state is earlier than the current one"):
            session.roll_back()


def test_where_no_state_is_old_enough_the_oldest_is_named(open_session: Open) -> None:
    with open_session(keep=1, every=2) as session:
        for seed in range(3):
            take(session, seed)
        before = state(session)
        for wanted in ({"queries": 2}, {"seconds": 1e6}, {"to": 1}):
            with pytest.raises(NoEarlierState, match="No kept state is") as refused:
                session.roll_back(**wanted)
            assert "The oldest is from query 2, 1 query and" in refused.value.remedy
        assert equal(state(session), before)


def test_a_reset_forgets_the_states_too(open_session: Open) -> None:
    with open_session(keep=3, every=1) as session:
        take(session, 0)
        session.reset()
        assert kept(session) == [1]
        with pytest.raises(NoEarlierState):
            session.roll_back(to=0)


def test_a_session_that_keeps_nothing_says_so(open_session: Open) -> None:
    with open_session(keep=0) as session:
        take(session, 0)
        with pytest.raises(NoEarlierState, match="No earlier states") as refused:
            session.roll_back()
        assert refused.value.settings == ("keep_states",)
