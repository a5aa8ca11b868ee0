"""The views of a command's progress: quiet, plain lines and live bars, for runs, inboxes and comparisons."""

import io
from collections import Counter

import pytest

from crodobo.cli import progress
from crodobo.cli.console import SteadyConsole
from crodobo.cli.progress import LiveView, PlainView, QuietView, make_observer
from crodobo.core.counts import Counts
from crodobo.core.observer import Observer
from crodobo.inbox.counts import FileCounts

METHODS = [name for name in vars(Observer) if not name.startswith("_")]


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def plain(output: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> PlainView:
    """A plain view that prints every line at once."""
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    return PlainView(SteadyConsole(file=output, width=100))


@pytest.fixture
def live(output: io.StringIO) -> LiveView:
    return LiveView(SteadyConsole(file=output, force_terminal=True, width=160))


def make_counts(queries: int, **given: object) -> Counts:
    counts = Counts(queries=queries, samples=8 * queries, accuracy=0.5, **given)  # type: ignore[arg-type]
    counts.seconds.extend([2.0] * queries)
    counts.agreement.extend([0.75] * queries)
    return counts


@pytest.mark.parametrize("view", [PlainView, LiveView])
@pytest.mark.parametrize("method", METHODS)
def test_views_implement_every_method_of_an_observer(view: type[QuietView], method: str) -> None:
    assert getattr(view, method) is not getattr(Observer, method)


def test_a_pipe_gets_plain_lines_and_quiet_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with make_observer(quiet=False) as view:
        view.note("hello [bold]there[/bold]")
    assert isinstance(view, PlainView)
    with make_observer(quiet=True) as view:
        view.note("never shown")
    assert capsys.readouterr().out == "hello [bold]there[/bold]\n"


def test_plain_lines_of_a_run(plain: PlainView, output: io.StringIO) -> None:
    plain.reading(1, 2)
    plain.warming_up(2, learners=2)
    plain.warmed_up_step()
    plain.warmed_up_step()
    plain.streaming(4)
    plain.query(make_counts(2, refused=1, predicted_only=Counter({"few classes": 1})))
    plain.query(make_counts(2, refused=1, predicted_only=Counter({"few classes": 1})))
    assert output.getvalue().splitlines() == [
        "decoding the source into the cache: 1/2",
        "warm-up on the source: 2 steps for each of 2 learners",
        "warm-up 0/2",
        "warm-up 1/2",
        "stream: 4 queries",
        "query 3/4 · online 50.0 % · agree 75.0 % · 2.00 s/query · refused 1 · predicted only 1 · 2 s left",
    ]


def test_the_last_query_of_a_run_is_always_shown(output: io.StringIO) -> None:
    plain = PlainView(SteadyConsole(file=output, width=100))
    plain.streaming(2)
    for number in (1, 2):
        plain.query(make_counts(number))
    assert [line.split(" · ")[0] for line in output.getvalue().splitlines()] == ["stream: 2 queries", "query 2/2"]


def test_plain_lines_of_an_inbox(plain: PlainView, output: io.StringIO) -> None:
    plain.streaming(0)
    plain.query(FileCounts())
    plain.query(FileCounts(queries=1, samples=8, quarantined=2, waiting=3, restored=["why"]))
    assert output.getvalue().splitlines() == [
        "stream: the files in the inbox",
        "8 predicted · 2 in quarantine · 3 waiting · restored 1",
    ]


def test_plain_lines_of_a_comparison(plain: PlainView, output: io.StringIO) -> None:
    plain.jobs(3, 1)
    plain.job_started("ent, seed 0")
    plain.job_progress("ent, seed 0", 1, 2, "online 12.5 %")
    plain.job_ended("ent, seed 0", None)
    plain.job_ended("dan, seed 0", "No room.")
    assert output.getvalue().splitlines() == [
        "3 runs including warm-ups, 1 already finished",
        "2/3 ent, seed 0: online 12.5 %, 0 s",
        "3/3 dan, seed 0: FAILED: No room.",
    ]


def test_live_bars_of_a_run(live: LiveView) -> None:
    with live:
        live.warmed_up_step()  # without a warm-up, nothing happens
        live.warming_up(3, learners=2)
        for _ in range(3):
            live.warmed_up_step()
        live.streaming(4)
        live.query(make_counts(2))
    shown = [(task.description.strip(), task.completed, task.total) for task in live.bars.tasks]
    assert shown == [("warm-up", 1, 3), ("stream", 2, 4)]
    assert live.bars.tasks[1].fields["numbers"] == "online 50.0 % · agree 75.0 % · 2.00 s/query"


def test_live_bars_of_an_inbox(live: LiveView) -> None:
    with live:
        live.streaming(0)
        live.query(FileCounts())
        assert live.bars.tasks[0].fields["numbers"] == "waiting for files"
        live.query(FileCounts(queries=1, samples=8, quarantined=2, waiting=3))
    assert [(task.completed, task.total) for task in live.bars.tasks] == [(10, 13)]
