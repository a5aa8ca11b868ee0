"""The session: the order of its steps, what survives a failure, and which checkpoints it refuses."""

import json
import multiprocessing
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crodobo import CroDoBo, CrodoboError, Query, SessionSettings, Source
from crodobo.audit.ledger import audit_ledger
from crodobo.burn.arena import Arena
from crodobo.core.observer import Observer
from crodobo.core.prediction import Adaptation, Prediction
from crodobo.data import Public
from crodobo.errors import BadCheckpoint, BadData, BadQuery, BadSettings, Interrupted, NotHardened, Residue
from crodobo.guard.lesson import Lesson
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.session.checkpoint import NAME as CHECKPOINT
from crodobo.session.session import Session
from crodobo.session.stop import Stop, StoppableObserver
from crodobo.storage.tensors import load_tensors
from crodobo.views.augment import Augment


@pytest.fixture
def public(source: Source) -> Public:
    return Public(source, Augment(), "40 images", "quarters")


def settings(**others: Any) -> SessionSettings:
    options = CroDoBo.Settings(warmup=1, warmup_batch=8, parallel=False, threads=1, **others.pop("options", {}))
    return SessionSettings(options=options, query_size=8, **others)


def images(seed: int = 0) -> torch.Tensor:
    return torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LEDGER).read_text(encoding="utf-8").splitlines()]


def weights(session: Session) -> torch.Tensor:
    parameters = [weight for learner in session.method.learners for weight in learner.network.parameters()]
    return torch.cat([weight.detach().flatten() for weight in parameters])


def test_memory_that_cannot_be_locked_is_an_error_before_the_warm_up(
    public: Public, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(size: int) -> None:
        raise NotHardened(f"{size} bytes cannot be locked in memory.")

    class NoWarmUp(Observer):
        def warming_up(self, steps: int) -> None:
            pytest.fail("the warm-up began")

    with Session(settings(), tmp_path, observer=NoWarmUp()) as session:
        session.memory = Arena()
        monkeypatch.setattr("crodobo.burn.arena._map_chunk", limited)
        large = session.settings.model_copy(update={"query_size": 10_000})
        session.settings = large
        with pytest.raises(NotHardened, match="cannot be locked"):
            session.load(public)


def test_commit_comes_after_burning_and_before_the_receipt(public: Public, tmp_path: Path) -> None:
    seen: list[str] = []
    given = images()

    def commit(prediction: Prediction, number: int, seconds: float) -> None:
        assert not given.any(), "the query is burned before anything is committed"
        assert [entry["kind"] for entry in entries(tmp_path)] == ["header"], "no receipt yet"
        seen.append(f"query {number} of {len(prediction.labels)}")

    with Session.open(settings(), public, tmp_path) as session:
        processed = session.take(Query(given), commit=commit)
        assert entries(tmp_path)[-1]["id"] == processed.receipt
    assert seen == ["query 1 of 8"]
    assert [entry["kind"] for entry in entries(tmp_path)] == ["header", "query", "closed"]


def test_without_a_commit_there_is_no_receipt(public: Public, tmp_path: Path) -> None:
    def commit(*_: object) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"), Session.open(settings(), public, tmp_path) as session:
        session.take(Query(images()), commit=commit)
    assert [entry["kind"] for entry in entries(tmp_path)] == ["header", "closed"]
    assert entries(tmp_path)[-1]["end"] == "failed"


def test_a_refused_query_is_burned_receipted_and_counted_and_the_session_goes_on(
    public: Public, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = torch.rand(2, 3, 16, 16)
    shown: list[int] = []
    with Session.open(settings(), public, tmp_path) as session:
        monkeypatch.setattr(session.observer, "query", lambda counts: shown.append(counts.refused))
        with pytest.raises(BadQuery):
            session.take(Query(wrong))
        assert shown == [1], "a view that waits for the last query must hear of it"
        assert not wrong.any()
        assert session.take(Query(images())).query == 2
        assert (session.counts.refused, session.counts.queries, session.learned) == (1, 1, 1)
    assert [entry["samples"] for entry in entries(tmp_path) if entry["kind"] == "query"] == [2, 8]


def test_a_continued_session_gives_the_same_predictions_to_the_bit(public: Public, tmp_path: Path) -> None:
    def predict(folder: Path, numbers: list[int]) -> list[torch.Tensor]:
        with Session.open(settings(checkpoint_every=1), public, folder) as session:
            return [session.take(Query(images(number))).prediction.probabilities for number in numbers]

    whole = predict(tmp_path / "whole", [1, 2, 3])
    parts = predict(tmp_path / "parts", [1, 2]) + predict(tmp_path / "parts", [3])
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"options": {"seed": 1}}, "seed is 0 there and 1 here"),
        ({"options": {"learners": 1}}, "learners is 2 there and 1 here"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_with_a_remedy(
    changes: dict[str, Any], problem: str, public: Public, tmp_path: Path
) -> None:
    with Session.open(settings(), public, tmp_path):
        pass
    with pytest.raises(BadCheckpoint, match=problem) as refused, Session.open(settings(**changes), public, tmp_path):
        pass
    assert refused.value.settings == ("state", "fresh")
    with Session(settings(**changes), tmp_path) as session:
        session.load(public, fresh=True)
        session.start()


@pytest.mark.parametrize("free", [{"threads": 2}, {"order": "predict-then-adapt"}, {"burn": "off"}])
def test_settings_that_do_not_decide_the_learners_may_change(
    free: dict[str, Any], public: Public, tmp_path: Path
) -> None:
    with Session.open(settings(checkpoint_every=1), public, tmp_path) as session:
        session.take(Query(images()))
    changed = settings().model_copy(update={"options": settings().options.model_copy(update=free)})
    with Session.open(changed, public, tmp_path) as session:
        assert session.learned == 1


def test_changed_data_is_refused(public: Public, tmp_path: Path) -> None:
    with Session.open(settings(), public, tmp_path):
        pass
    with (
        pytest.raises(BadCheckpoint, match="have changed"),
        Session.open(settings(), public._replace(stamp="41 images"), tmp_path),
    ):
        pass


def test_changed_settings_are_named_even_if_they_change_the_data(public: Public, tmp_path: Path) -> None:
    with Session.open(settings(), public, tmp_path):
        pass
    other = public._replace(stamp="41 images")
    with (
        pytest.raises(BadCheckpoint, match="seed is 0 there and 1 here"),
        Session.open(settings(options={"seed": 1}), other, tmp_path),
    ):
        pass


def test_a_checkpoint_that_fails_is_reported_and_the_stream_goes_on(
    public: Public, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Notes(Observer):
        texts: list[str] = []  # noqa: RUF012

        def note(self, text: str) -> None:
            self.texts.append(text)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with Session.open(settings(checkpoint_every=1), public, tmp_path, observer=Notes()) as session:
        monkeypatch.setattr("crodobo.session.checkpoint_writer.save_checkpoint", full)
        session.take(Query(images()))
        assert "No space left on device" in Notes.texts[-1]
        assert not session.checkpoint()
        session.take(Query(images(1)))
        assert session.failure is None
    with Session.open(settings(), public, tmp_path) as session:
        assert session.learned == 0, "the checkpoint is the one from the start"


def test_residue_is_written_to_the_receipt_and_ends_the_session(
    public: Public, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session.open(settings(), public, tmp_path) as session:
        scan = type(
            "Scan", (), {"finds": ["3 bytes"], "as_numbers": lambda _: {"found": 1, "scanned": 1, "seconds": 0.1}}
        )
        monkeypatch.setattr(session.prover, "prove_after", lambda *_: scan())
        with pytest.raises(Residue, match="3 bytes"):
            session.take(Query(images()))
        assert isinstance(session.failure, Residue)
    assert entries(tmp_path)[1]["scan"]["found"] == 1
    assert entries(tmp_path)[-1]["end"] == "failed"


def test_proving_again_needs_strict_burning(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as refused:
        Session(settings(prove_every=5), tmp_path)
    assert "prove_every" in refused.value.settings


def test_a_stop_during_the_warm_up_is_an_interruption(public: Public, tmp_path: Path) -> None:
    stop = Stop()
    stop.request()
    with pytest.raises(Interrupted, match="warm-up"), Session(settings(), tmp_path, stop=stop) as session:
        session.load(public)
    assert not (tmp_path / CHECKPOINT).exists()
    with pytest.raises(Interrupted, match="decoded"):
        StoppableObserver(Observer(), stop).reading(1, 2)


def _open(folder: Path, line: Any) -> None:
    try:
        with Session(settings(), folder):
            line.send("open")
    except CrodoboError as error:
        line.send(str(error))


def test_a_folder_has_one_session_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    answers = []
    for _ in range(2):
        with Session(settings(), tmp_path) if not answers else Session(settings(), tmp_path / "other"):
            process = context.Process(target=_open, args=(tmp_path, there))
            process.start()
            answers.append(here.recv())
            process.join()
    assert answers[0].startswith("Another process is writing")
    assert answers[1] == "open"


def _request_from_a_signal_handler_too() -> None:
    stop, end = Stop(), time.monotonic() + 0.5
    signal.signal(signal.SIGALRM, lambda *_: stop.request())
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    while time.monotonic() < end:
        stop.request()


def test_a_second_signal_may_interrupt_a_request_to_stop() -> None:
    process = multiprocessing.get_context("fork").Process(target=_request_from_a_signal_handler_too)
    process.start()
    process.join(60)
    ended = process.exitcode
    process.kill()
    assert ended == 0


def test_a_query_that_is_not_learned_is_predicted_only_and_its_reason_is_counted_and_logged(
    public: Public, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    with Session.open(settings(log=log, options={"plain": True}), public, tmp_path) as session:
        before = weights(session)
        reasons = [
            session.take(Query(images()), adapt=False).prediction.adaptation.predicted_only,
            session.take(
                Query(images()), adapt=torch.zeros(8, dtype=torch.bool), reason="key limit reached"
            ).prediction.adaptation.predicted_only,
        ]
        session.adapting = False
        reasons.append(session.take(Query(images())).prediction.adaptation.predicted_only)
        assert reasons == ["not asked to adapt", "key limit reached", "adaptation paused"]
        assert torch.equal(weights(session), before)
        session.adapting = True
        assert session.take(Query(images())).prediction.adaptation.predicted_only is None
        assert not torch.equal(weights(session), before)
        assert (session.counts.predicted_only, session.learned) == (dict.fromkeys(reasons, 1), 1)
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [event.get("predicted_only") for event in events if event["event"] == "query"] == [*reasons, None]


def test_only_the_chosen_samples_of_a_query_are_learned(public: Public, tmp_path: Path) -> None:
    """The learners end as if the others had been other images, but all are predicted."""
    chosen = torch.tensor([True] * 5 + [False] * 3)
    other = torch.cat([images(0)[:5], images(1)[5:]])
    learned = []
    for number, given in enumerate((images(0), other)):
        with Session.open(settings(options={"guard": False}), public, tmp_path / str(number)) as session:
            prediction = session.take(Query(given), adapt=chosen).prediction
            assert (len(prediction.labels), prediction.adaptation.predicted_only) == (8, None)
            learned.append(weights(session))
    assert torch.equal(*learned)


@pytest.mark.parametrize(("shape", "told"), [((3, 64, 64), True), ((1, 64, 64), False), ((3, 32, 32), False)], ids=str)
def test_random_weights_on_what_may_be_photographs_are_noted(
    shape: tuple[int, ...], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    observer = Observer()
    monkeypatch.setattr(observer, "note", notes.append)
    source = Source(torch.rand(8, *shape), [0, 1] * 4)
    with Session(settings(options={"source_views": "plain"}), tmp_path, observer=observer) as session:
        session.load(Public(source, Augment(), "8 images", "own"))
    assert any("pretrained weights" in note for note in notes) == told


# --- stored states ---


def stored(folder: Path) -> torch.Tensor:
    """All weights in the checkpoint."""
    tensors, _ = load_tensors(folder / CHECKPOINT)
    return torch.cat([value.flatten().float() for name, value in tensors.items() if ".network." in name])


def test_no_two_stored_states_are_closer_than_was_asked_however_often_a_session_stops(
    public: Public, tmp_path: Path
) -> None:
    states, learned = [], []
    for stop in (2, 1, 3, 4):
        with Session.open(settings(checkpoint_every=3, options={"plain": True}), public, tmp_path) as session:
            learned.append(session.learned)
            states.append(stored(tmp_path))
            for number in range(stop):
                session.take(Query(images(number)))
                states.append(stored(tmp_path))
            session.checkpoint()
        states.append(stored(tmp_path))
    assert learned == [0, 0, 0, 3]
    assert len({state.numpy().tobytes() for state in states}) == 3, "after 0, 3 and 6 learned queries"


def test_queries_that_are_not_learned_do_not_bring_the_next_checkpoint_closer(
    public: Public, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter(
        [Adaptation(predicted_only="few classes"), Adaptation(), Adaptation(restored="harm"), *[Adaptation()] * 2]
    )
    with Session.open(settings(checkpoint_every=2), public, tmp_path) as session:
        step = session.method.step
        monkeypatch.setattr(session.method, "step", lambda *all_: replace(step(*all_), adaptation=next(given)))
        start, saved = stored(tmp_path), []
        for number in range(5):
            session.take(Query(images(number)))
            saved.append(not torch.equal(stored(tmp_path), start))
    assert saved == [False] * 4 + [True]


# --- its ledger ---


def test_the_checkpoint_names_its_ledger_and_a_cut_back_one_is_found(public: Public, tmp_path: Path) -> None:
    for _ in range(2):
        with Session.open(settings(checkpoint_every=1, options={"plain": True}), public, tmp_path) as session:
            session.take(Query(images()))
    assert audit_ledger(tmp_path / LEDGER).sound
    lines = (tmp_path / LEDGER).read_bytes().splitlines(keepends=True)
    (tmp_path / LEDGER).write_bytes(b"".join(lines[:3]))  # to the first closing line
    (found,) = audit_ledger(tmp_path / LEDGER).found
    assert found.startswith("An entry that checkpoint.safetensors beside it names is missing")


def test_the_ledger_of_another_session_is_refused_and_a_new_one_may_begin(public: Public, tmp_path: Path) -> None:
    for name in ("one", "other"):
        with Session.open(settings(), public, tmp_path / name):
            pass
    ledger = tmp_path / "one" / LEDGER
    ledger.write_bytes((tmp_path / "other" / LEDGER).read_bytes())
    with pytest.raises(BadData, match="not the one that belongs"), Session.open(settings(), public, tmp_path / "one"):
        pass
    ledger.unlink()
    with Session.open(settings(), public, tmp_path / "one"):
        pass
    assert audit_ledger(ledger).sound


# --- idle steps ---


def idle(session: Session, given: torch.Tensor, **options: Any) -> tuple[Any, list[Any], torch.Tensor]:
    """Take a query with idle steps. Returns the result, the early answers, and the weights at that moment."""
    early: list[Any] = []
    then = torch.zeros(0)

    def answer(processed: Any) -> None:
        nonlocal then
        assert given.any(), "the query is still needed"
        early.append(processed)
        then = weights(session).clone()

    return session.take(Query(given), early=answer, idle_steps=2, **options), early, then


def test_idle_steps_follow_the_answer_and_the_receipt_follows_them(public: Public, tmp_path: Path) -> None:
    given = images()
    with Session.open(settings(options={"steps": 1, "guard": False}), public, tmp_path) as session:
        processed, (early,), then = idle(session, given)
        assert not torch.equal(weights(session), then), "it went on learning"
        assert (early.receipt, early.query) == (processed.receipt, 1)
    assert not given.any()
    kinds = [entry["kind"] for entry in entries(tmp_path)]
    assert kinds == ["header", "answered", "query", "closed"]


def test_idle_steps_end_as_soon_as_somebody_waits(public: Public, tmp_path: Path) -> None:
    with Session.open(settings(options={"steps": 1, "guard": False}), public, tmp_path) as session:
        _, early, then = idle(session, images(), free=lambda: False)
        assert early
        assert torch.equal(weights(session), then)


def test_no_idle_steps_on_a_query_that_is_not_learned(public: Public, tmp_path: Path) -> None:
    with Session.open(settings(), public, tmp_path) as session:
        processed, early, _ = idle(session, images(), adapt=False)
        assert not early
        assert processed.prediction.adaptation.predicted_only == "not asked to adapt"
    assert [entry["kind"] for entry in entries(tmp_path)] == ["header", "query", "closed"]


def test_a_failed_idle_step_leaves_no_trace_but_the_receipt(
    public: Public, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = images()
    with Session.open(settings(options={"steps": 1, "guard": False}), public, tmp_path) as session:
        before, adapt, calls = weights(session).clone(), session.method.adapt, []

        def fail(query: Query, pixels: torch.Tensor) -> Any:
            calls.append(1)
            if len(calls) > 1:
                raise ZeroDivisionError
            return adapt(query, pixels)

        monkeypatch.setattr(session.method, "adapt", fail)
        with pytest.raises(ZeroDivisionError):
            idle(session, given)
        assert torch.equal(weights(session), before)
    assert not given.any()
    assert [entry["kind"] for entry in entries(tmp_path)] == ["header", "answered", "query", "closed"]
    assert [entry.get("query") for entry in entries(tmp_path)[1:3]] == [1, 1]


def test_harm_done_by_idle_steps_is_undone(public: Public, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session.open(settings(options={"steps": 1}), public, tmp_path) as session:
        method = session.method
        adapt, calls = method.adapt, []
        monkeypatch.setattr(method.guard, "_decide", lambda *_: Lesson())  # every query is learned

        def harm(query: Query, pixels: torch.Tensor) -> Any:
            calls.append(1)
            told = adapt(query, pixels)
            if len(calls) > 1:
                for learner in method.learners:
                    with torch.no_grad():
                        learner.network.classifier.bias.fill_(torch.nan)
            return told

        monkeypatch.setattr(method, "adapt", harm)
        processed, (early,), _ = idle(session, images())
        assert len(calls) > 1
        assert early.prediction.probabilities.isfinite().all()
        assert "no longer finite" in str(processed.prediction.adaptation.restored)
        assert weights(session).isfinite().all()
