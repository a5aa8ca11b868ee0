"""The accuracy is estimated without labels, and unknown where the estimate would be worth nothing."""

import pytest
import torch
from torch import Tensor

from crodobo import CroDoBo, Prediction, Query, Source
from crodobo.core.counts import Counts
from crodobo.core.metrics import ConfusionMatrix, StreamRecord
from crodobo.core.prediction import Estimate
from crodobo.engine import Sequence
from crodobo.evaluate.outcome import last_estimate
from crodobo.guard.domain import Domain
from crodobo.guard.estimate import LEAST, Estimator
from crodobo.guard.watch import Watch

EVEN = torch.tensor([0.5, 0.5])


def predicted(agreement: float | None, confidence: float, samples: int = LEAST) -> Prediction:
    confident = torch.tensor([[confidence, 1 - confidence]] * samples)
    confident[::2] = confident[::2].flip(1)
    return Prediction(confident, agreement)


def estimated(estimator: Estimator, agreement: float, confidence: float) -> Estimate:
    estimator.clear()
    estimator.add(predicted(agreement, confidence))
    estimate = estimator.estimate()
    assert estimate
    return estimate


@pytest.fixture
def estimator() -> Estimator:
    """Fitted to learners that are a little less accurate than they agree, and always a little more confident."""
    estimator, generator = Estimator(EVEN), torch.Generator().manual_seed(0)
    agreement = torch.linspace(0.3, 1.0, 15)
    noise = torch.randn(2, 15, generator=generator) * (1 - agreement) / 10
    estimator.fit(agreement, 0.3 + 0.7 * agreement + noise[0] / 4, agreement - 0.05 + noise[1])
    return estimator


@pytest.fixture(scope="module")
def warm(source: Source) -> dict[str, Tensor]:
    """The state of a method that has learned the source."""
    return CroDoBo(source, learners=2, warmup=30, warmup_batch=32).state()


@pytest.fixture
def method(source: Source, warm: dict[str, Tensor]) -> CroDoBo:
    method = CroDoBo(source, learners=2, warmup=0)
    method.load_state(warm)
    return method


def ask(method: CroDoBo, source: Source, times: int = 1) -> Prediction:
    """Send the source's images as queries, in random order."""
    for seed in range(times):
        order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))
        with Query(source.images[order]) as query:
            prediction = method.step(query)
    return prediction


def watch_of(method: CroDoBo) -> Watch:
    assert isinstance(method.guard, Watch)
    return method.guard


def test_more_agreement_means_more_accuracy_and_a_narrower_interval(estimator: Estimator) -> None:
    found = [estimated(estimator, agreement, 0.3 + 0.7 * agreement) for agreement in (0.75, 0.8, 0.9)]
    assert [each.accuracy for each in found] == sorted(each.accuracy for each in found)
    assert [each.accuracy for each in found] == pytest.approx([0.7, 0.75, 0.85], abs=0.05)
    assert all(0 <= each.low < each.accuracy < each.high <= 1 for each in found)
    widths = [each.high - each.low for each in found]
    assert widths == sorted(widths, reverse=True)


def test_an_estimate_covers_the_last_samples(estimator: Estimator) -> None:
    before = estimated(estimator, 0.99, 0.993)
    for _ in range(8):
        estimator.add(predicted(0.75, 0.825))
    after = estimator.estimate()
    assert after
    assert after.accuracy < before.accuracy - 0.2


def test_the_accuracy_of_learners_that_know_little_is_unknown(estimator: Estimator) -> None:
    estimator.add(predicted(0.5, 0.65))
    assert estimator.estimate() is None


def test_the_accuracy_is_unknown_for_few_samples_one_learner_or_what_the_source_has_not_shown(
    estimator: Estimator,
) -> None:
    estimator.add(predicted(0.8, 0.86, samples=LEAST - 1))
    assert estimator.estimate() is None
    estimator.add(predicted(None, 0.86))
    assert estimator.estimate() is None, "one learner has no agreement"
    estimator.add(predicted(0.8, 0.86, samples=1))
    assert estimator.estimate()
    estimator.clear()
    estimator.add(predicted(0.5, 0.99))
    assert estimator.estimate() is None, "learners that are sure and disagree"
    estimator.clear()
    estimator.add(Prediction(torch.tensor([[0.86, 0.14]] * LEAST), agreement=0.8))
    assert estimator.estimate() is None, "a single class"
    unfitted = Estimator(EVEN)
    unfitted.add(predicted(0.8, 0.86))
    assert unfitted.estimate() is None


def test_calibration_changes_nothing_of_the_learners(method: CroDoBo, source: Source) -> None:
    reference, estimator = watch_of(method).reference, Estimator(watch_of(method).prior)
    before = {name: value.clone() for name, value in reference.state().items()}
    estimator.calibrate(reference.learners, source, Sequence(threads=1))
    assert estimator.calibrated
    assert all(torch.equal(value, before[name]) for name, value in reference.state().items())


def test_a_stream_like_the_source_is_known_to_be_easy(method: CroDoBo, source: Source) -> None:
    assert ask(method, source).estimate is None, "too few samples"
    estimate = ask(method, source, times=2).estimate
    assert estimate
    assert 0.8 < estimate.accuracy <= estimate.high <= 1
    assert method.predict(source.images).estimate == estimate


def test_the_accuracy_is_unknown_in_a_domain_that_is_not_trusted(
    method: CroDoBo, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(method, source, times=2)
    watch = watch_of(method)
    assert watch.estimate
    watch.knowledge.agreed[0] = 0
    assert watch.estimate is None, "the learners disagree"
    watch.knowledge.agreed[0] = watch.knowledge.agreed[1]
    assert watch.estimate
    with monkeypatch.context() as patched:
        patched.setattr(watch.bursts.spread, "evidence", torch.tensor([0.0, 5.0]))
        assert watch.estimate is None, "the stream comes in bursts"
    assert watch.estimate
    monkeypatch.setattr(Domain, "remote", True)
    assert watch.estimate is None, "far from the source"


def test_the_accuracy_is_unknown_for_short_queries(method: CroDoBo, source: Source) -> None:
    """Learners that were measured on full batches agree less on short ones, whatever their accuracy."""
    ask(method, source, times=2)
    assert watch_of(method).estimate
    for part in torch.arange(len(source)).repeat(8).split(10):
        with Query(source.images[part]) as query:
            prediction = method.step(query)
    assert prediction.estimate is None


def test_a_checkpoint_holds_the_estimate(method: CroDoBo, source: Source) -> None:
    ask(method, source, times=2)
    other = CroDoBo(source, learners=2, warmup=0)
    other.load_state({name: value.clone() for name, value in method.state().items()})
    assert watch_of(method).estimate
    assert watch_of(other).estimate == watch_of(method).estimate


def test_one_learner_has_no_estimate(source: Source) -> None:
    method = CroDoBo(source, learners=1, warmup=1)
    assert ask(method, source, times=2).estimate is None


def test_counts_and_records_hold_the_latest_estimate() -> None:
    counts, record = Counts(), StreamRecord(ConfusionMatrix(2))
    known = Prediction(torch.eye(2), 1.0, estimate=Estimate(0.9, 0.8, 1.0))
    for prediction, expected in ((known, known.estimate), (Prediction(torch.eye(2), 1.0), None)):
        counts.add(prediction, ["a", "b"], query=1, seconds=0.1, wiped=0)
        record.add(prediction, torch.tensor([0, 1]), seconds=0.1)
        assert counts.estimate == expected
        assert last_estimate(record) == (expected and expected._asdict())
        assert record.rows[-1].estimate == (expected and expected.accuracy)
        assert prediction.numbers["estimated_accuracy_low"] == (expected and expected.low)
    assert last_estimate(StreamRecord(ConfusionMatrix(2))) is None


def test_the_accuracy_is_unknown_for_some_queries_after_one_of_few_classes(method: CroDoBo, source: Source) -> None:
    assert ask(method, source, times=3).estimate
    burst = source.images[source.labels == 0].repeat(4, 1, 1, 1)[:32]
    with Query(burst) as query:
        assert method.step(query).estimate is None
    assert ask(method, source).estimate is None
    assert ask(method, source, times=10).estimate
