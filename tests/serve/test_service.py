"""The service without wires: what it counts, what it keeps, and what it refuses to go on with."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from crodobo.config import DataSettings
from crodobo.errors import BadCheckpoint, BadData, CrodoboError, TooClose
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.methods import Method, get_method
from crodobo.serve.service import WARM_START, Service
from crodobo.serve.settings import ServeSettings
from crodobo.session.checkpoint import NAME
from crodobo.storage.files import unfinished_name

IMAGES = torch.randint(256, (8, 1, 16, 16), generator=torch.Generator().manual_seed(0)).byte()
Make = Callable[..., Service]


@pytest.fixture
def make(public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A service that is loaded; with the same state each time."""
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "cache"))
    options = get_method("crodobo").Settings.of(plain=True, warmup=1, warmup_batch=4, burn="standard", parallel=False)

    def make(source: Path = public, fresh: bool = False, **settings: int) -> Service:
        data = DataSettings.of(source=source, grey=True)
        chosen = ServeSettings.of(
            options=options,
            state=tmp_path / "state",
            benchmark="own",
            data=data,
            image_size=16,
            query_size=8,
            log=tmp_path / "log.jsonl",
            **settings,
        )
        service = Service(chosen, fresh=fresh).__enter__()
        try:
            service.load()
        except BaseException:
            service.close()
            raise
        return service

    return make


def numbers(service: Service) -> list[int]:
    """Of all queries that have a receipt."""
    lines = [json.loads(line) for line in (service.settings.state / LEDGER).read_text().splitlines()]
    return [line["query"] for line in lines if line["kind"] == "query"]


def met(service: Service) -> int:
    """Queries that the checkpoint's learners have learned from."""
    with safe_open(service.settings.state / NAME, framework="pt") as file:
        progress: dict[str, int] = json.loads(file.metadata()["crodobo"])["progress"]
    return progress["queries"]


def weights(service: Service) -> torch.Tensor:
    return (
        torch.cat([value.flatten() for value in service.session.method.learners[0].network.parameters()])
        .detach()
        .clone()
    )


def test_the_next_process_goes_on_where_this_one_was_and_gives_no_number_twice(make: Make) -> None:
    with closing(make(checkpoint_every=1)) as first:
        assert first.answer(IMAGES.clone()).query == 1
        assert first.answer(IMAGES.clone(), adapt=False).query == 2
        assert (first.session.learned, first.session.ledger.last_query) == (1, 2)
        learned = weights(first)
    assert met(first) == 1
    with closing(make()) as second:
        assert torch.equal(weights(second), learned)
        assert second.session.learned == 1
        assert second.answer(IMAGES.clone()).query == 3
        assert numbers(second) == [1, 2, 3]


def test_a_reset_forgets_all_queries_and_is_remembered(make: Make) -> None:
    with closing(make(checkpoint_every=1)) as first:
        new = weights(first)
        first.answer(IMAGES.clone())
        assert not torch.equal(weights(first), new)
        first.administer("reset")
        assert met(first) == 0
        assert torch.equal(weights(first), new)
    with closing(make()) as second:
        assert torch.equal(weights(second), new)
        assert (second.session.learned, second.session.ledger.last_query) == (0, 1)
    events = [
        json.loads(line)["event"] for line in (first.settings.state.parent / "log.jsonl").read_text().splitlines()
    ]
    assert "reset" in events


def test_an_answer_waits_for_its_checkpoint_only_as_often_as_was_asked(make: Make) -> None:
    with closing(make(checkpoint_every=2)) as service:
        assert [service.answer(IMAGES.clone()).saved is not None for _ in range(4)] == [False, True, False, True]
        assert service.answer(IMAGES.clone(), adapt=False).saved is None  # nothing was learned


def test_what_is_written_is_what_was_known_then_however_late_it_is_written(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, written = threading.Event(), []

    def save(folder: Path, tensors: dict[str, torch.Tensor], *_: object) -> None:
        slow.wait(30)
        written.append({name: value.clone() for name, value in tensors.items()})

    with closing(make(checkpoint_every=1)) as service:
        monkeypatch.setattr("crodobo.session.checkpoint_writer.save_checkpoint", save)
        first = service.answer(IMAGES.clone())
        known = {name: value.clone() for name, value in service.session.method.state().items()}
        service.answer(IMAGES.clone())
        slow.set()
        assert first.saved
        first.saved.result(30)
    assert all(torch.equal(value, written[0][name]) for name, value in known.items())


def test_where_what_was_learned_cannot_be_written_nothing_more_is_answered(make: Make) -> None:
    service = make(checkpoint_every=1)
    unfinished_name(service.settings.state / NAME).mkdir()  # as if the disk were full
    saved = service.answer(IMAGES.clone()).saved
    assert saved
    with pytest.raises(CrodoboError, match="No checkpoint could be written"):
        saved.result(30)
    assert not service.answering
    service.close()
    assert met(service) == 0


def test_a_start_that_fails_leaves_the_checkpoint_as_it_is(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(make(checkpoint_every=1)) as first:
        first.answer(IMAGES.clone())

    def load_state(*_: object) -> None:
        raise KeyError("a weight of another version")

    monkeypatch.setattr(Method, "load_state", load_state)
    with pytest.raises(BadCheckpoint, match="another version"):
        make()
    assert met(first) == 1


def test_a_pause_is_remembered_and_others_cannot_read_what_was_learned(make: Make) -> None:
    with closing(make()) as first:
        first.administer("pause")
    with closing(make()) as second:
        assert (second.state, second.session.adapting) == ("paused", False)
        before = weights(second)
        second.answer(IMAGES.clone())
        assert torch.equal(weights(second), before)
        second.administer("resume")
    with closing(make()) as third:
        assert third.state == "ready"
        for name in (NAME, WARM_START):
            assert (third.settings.state / name).stat().st_mode & 0o077 == 0


def test_a_pause_and_a_stop_store_no_weights_and_an_asked_for_checkpoint_says_how_long_it_takes(make: Make) -> None:
    with closing(make(checkpoint_every=3)) as service:
        service.administer("checkpoint")  # nothing was learned, so nothing is revealed
        service.answer(IMAGES.clone())
        with pytest.raises(TooClose, match="when 2 more queries are learned"):
            service.administer("checkpoint")
        service.administer("pause")
        service.administer("resume")
    assert met(service) == 0
    with closing(make(checkpoint_every=3)) as again:
        for _ in range(3):
            last = again.answer(IMAGES.clone())
        assert last.saved
        again.administer("checkpoint")
    assert met(again) == 3


def test_the_warm_start_holds_weights_and_nothing_of_the_optimiser(make: Make) -> None:
    with closing(make()) as service:
        path = service.settings.state / WARM_START
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
        assert any("network" in name for name in names)
        assert not [name for name in names if "optimiser" in name or "generator" in name]


def test_a_pause_that_had_to_wait_does_not_undo_the_end(make: Make) -> None:
    with closing(make()) as service:
        service.drain()
        service.administer("pause")
        assert not service.answering
        service.administer("resume")
        assert not service.answering


def test_new_learners_are_asked_for_and_the_old_ones_go_only_when_the_source_is_there(
    make: Make, public: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(public, tmp_path / "source")
    with closing(make(source, checkpoint_every=1)) as first:
        first.answer(IMAGES.clone())
    (source / "cat").rename(tmp_path / "away")
    shutil.move(source / "dog", tmp_path / "dogs")
    with pytest.raises(CrodoboError):
        make(source, fresh=True)  # a source of one class is none
    assert met(first) == 1
    shutil.move(tmp_path / "dogs", source / "dog")
    (tmp_path / "away").rename(source / "cat")
    with closing(make(source, fresh=True)) as second:
        assert second.session.learned == 0


def test_a_class_whose_name_cannot_be_sent_is_refused_at_the_start(make: Make, public: Path, tmp_path: Path) -> None:
    source = shutil.copytree(public, tmp_path / "source")
    (source / "cat").rename(os.fsdecode(os.fsencode(source) + b"/c\xff"))
    with pytest.raises(BadData, match="Rename its folder"):
        make(source)


@pytest.mark.parametrize("change", ["a class has another name", "there is one more image"])
def test_learners_of_another_source_are_not_gone_on_with(make: Make, public: Path, tmp_path: Path, change: str) -> None:
    """Their numbers would stand for other classes."""
    source = shutil.copytree(public, tmp_path / "source")
    make(source).close()
    if change == "there is one more image":
        Image.new("RGB", (16, 16)).save(source / "cat" / "new.png")
    else:
        (source / "cat").rename(source / "emu")
    with pytest.raises(BadCheckpoint, match="have changed"):
        make(source)


def test_where_no_receipt_can_be_written_nothing_more_is_answered(make: Make) -> None:
    service = make()
    (service.settings.state / LEDGER).unlink()
    with pytest.raises(CrodoboError, match="ledger"):
        service.answer(IMAGES.clone())
    assert not service.answering
    assert service.failure
    service.close()
