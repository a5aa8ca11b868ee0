"""The contract of every registered method. A new method in the registry is tested automatically."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from crodobo import Method, Query, Source
from crodobo.config import LearnerSettings
from crodobo.engine import Sequence
from crodobo.errors import BadQuery, BadSettings
from crodobo.guard.watch import Watch
from crodobo.methods import REGISTRY
from crodobo.nn.learners import make_learners, warm_up
from crodobo.views.augment import Augment

SHAPE = (1, 16, 16)
SIZE = 13  # no other tensor here has so many rows
# Settings that make a method faster and do not affect the contract.
FEWER = {"fisher_samples": 16, "views": 3}


def make_source() -> Source:
    return Source((make_images(48, seed=1) * 255).to(torch.uint8), torch.arange(48) % 4)


def make_images(size: int = SIZE, seed: int = 0) -> Tensor:
    """Noise in which one of four quarters is bright, in turn."""
    images = torch.rand(size, *SHAPE, generator=Generator().manual_seed(seed)) * 0.8
    for number, image in enumerate(images):
        top, left = 8 * (number // 2 % 2), 8 * (number % 2)
        image[:, top : top + 8, left : left + 8] += 0.2
    return images


def ask(method: Method, images: Tensor) -> Any:
    with Query(images.clone()) as query:
        return method.step(query)


def copy_state(method: Method) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in method.state().items()}


def assert_same_state(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    assert before.keys() == after.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert not changed


ONLINE = sorted(name for name, method in REGISTRY.items() if "online" in method.protocols)


@pytest.fixture(params=ONLINE)
def kind(request: pytest.FixtureRequest) -> type[Method]:
    return REGISTRY[request.param]


@pytest.fixture
def make(kind: type[Method]) -> Callable[..., Method]:
    def build(**settings: Any) -> Method:
        options = {"warmup": 1, "warmup_batch": 8, "threads": 1, "burn": "off" if kind.keeps_target else "standard"}
        options |= {name: value for name, value in FEWER.items() if name in kind.Settings.model_fields}
        return kind(make_source(), **options | settings)

    return build


@pytest.mark.parametrize("size", [SIZE, 2, 1])
def test_it_predicts_queries_of_any_size(make: Callable[..., Method], size: int) -> None:
    prediction = ask(make(), make_images(size))
    assert prediction.probabilities.shape == (size, 4)
    torch.testing.assert_close(prediction.probabilities.sum(1), torch.ones(size))
    assert ((prediction.labels >= 0) & (prediction.labels < 4)).all()
    assert prediction.adaptation.skipped == 0


def test_it_accepts_bytes_and_floats(make: Callable[..., Method]) -> None:
    numbers = torch.randint(256, (5, *SHAPE), dtype=torch.uint8)
    from_bytes, from_floats = ask(make(), numbers), ask(make(), numbers.float() / 255)
    torch.testing.assert_close(from_bytes.probabilities, from_floats.probabilities)


def test_the_same_seed_gives_the_same_predictions_and_another_seed_others(make: Callable[..., Method]) -> None:
    one, same = make(seed=4), make(seed=4)
    runs = [[ask(method, make_images(seed=n)).probabilities for n in range(2)] for method in (one, same)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert not torch.equal(runs[0][0], ask(make(seed=5), make_images()).probabilities)


def test_sequence_and_parallel_give_the_same_bits(make: Callable[..., Method]) -> None:
    try:
        methods = [make(learners=3, parallel=parallel) for parallel in (False, True)]
    except BadSettings:
        return  # the method allows only one learner
    for n in range(2):
        one, other = (ask(method, make_images(seed=n)).probabilities for method in methods)
        assert torch.equal(one, other)
    assert_same_state(methods[0].state(), methods[1].state())


SPOILED: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda images: images.index_fill(0, torch.tensor([3]), float("nan")),
    "infinite": lambda images: images.index_fill(0, torch.tensor([3]), float("inf")),
    "above one": lambda images: images * 2,
    "negative": lambda images: images - 0.5,
    "height": lambda images: images[:, :, :8],
    "channels last": lambda images: images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous(),
    "channels": lambda images: images.expand(-1, 3, -1, -1).contiguous(),
    "empty": lambda images: images[:0],
    "three axes": lambda images: images[0],
    "int32": lambda images: (images * 255).to(torch.int32),
}


def test_a_bad_query_is_refused_before_anything_changes(make: Callable[..., Method]) -> None:
    method = make()
    ask(method, make_images())
    before = copy_state(method)
    for spoil in SPOILED.values():
        with pytest.raises(BadQuery):
            ask(method, spoil(make_images()))
        assert_same_state(before, method.state())
    ask(method, make_images())  # and it continues


def test_an_error_in_the_middle_of_a_step_changes_nothing(
    make: Callable[..., Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make(parallel=False)
    ask(method, make_images())
    before = copy_state(method)
    for learner in method.learners:

        def fail(*_: Tensor) -> bool:
            raise MemoryError

        monkeypatch.setattr(learner, "update", fail)
        monkeypatch.setattr(learner, "predict", fail)
    with pytest.raises(MemoryError):
        ask(method, make_images(seed=1))
    assert_same_state(before, method.state())


def assert_same_future(method: Method, undisturbed: Method) -> None:
    """Both methods continue with the same bits."""
    for n in range(7, 9):
        one, two = (ask(each, make_images(seed=n)).probabilities for each in (method, undisturbed))
        assert torch.equal(one, two)
    assert_same_state(method.state(), undisturbed.state())


def test_a_step_that_fails_after_its_updates_leaves_no_trace(
    make: Callable[..., Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, undisturbed = make(), make()
    for each in (method, undisturbed):
        ask(each, make_images())
    before, guarded = copy_state(method), method.guard.snapshot()
    adapt = method.adapt

    def adapt_and_fail(query: Query, images: Tensor) -> None:
        adapt(query, images)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(method, "adapt", adapt_and_fail)
        with pytest.raises(MemoryError):
            ask(method, make_images(seed=1))
    assert_same_state(before, method.state())
    assert same_objects(method.guard.snapshot(), guarded)
    assert_same_future(method, undisturbed)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_restored_snapshot_undoes_steps_completely(make: Callable[..., Method], steps: int) -> None:
    """Before the first step an optimiser may have no moments, so those of later steps have to go."""
    method, undisturbed = make(), make()
    for each in (method, undisturbed):
        for n in range(steps):
            ask(each, make_images(seed=n))
    guarded, snapshot = method.guard.snapshot(), method.snapshot()
    for n in range(1, 3):
        ask(method, make_images(seed=n))
    if method.guard:
        method.guard.good = method.guard.next = None
    method.restore(snapshot)
    assert same_objects(method.guard.snapshot(), guarded)
    assert_same_future(method, undisturbed)


def same_objects(left: Any, right: Any) -> bool:
    return all(one is other for one, other in zip(left, right, strict=True))


def test_the_callers_number_of_torch_threads_is_restored(make: Callable[..., Method]) -> None:
    torch.set_num_threads(2)
    method = make()
    ask(method, make_images())
    method.predict(make_images())
    assert torch.get_num_threads() == 2


def test_a_loss_that_is_not_finite_moves_no_weight_and_is_counted(make: Callable[..., Method]) -> None:
    method = make(guard=False)
    ask(method, make_images())
    with torch.no_grad():
        for learner in method.learners:
            learner.network.bottleneck[0].weight[0, 0] = float("nan")
    before = copy_state(method)
    prediction = ask(method, make_images(seed=1))
    changed = [
        name
        for name, value in method.state().items()
        if "generator" not in name
        and name not in ("steps", "largest")
        and not torch.equal(value.nan_to_num(7), before[name].nan_to_num(7))
    ]
    assert not changed
    assert prediction.adaptation.skipped in (0, len(method.learners))


def test_weights_that_are_not_finite_are_replaced_by_the_last_good_ones(make: Callable[..., Method]) -> None:
    method = make()
    if not method.learns:
        return  # queries cannot change its weights
    ask(method, make_images())
    with torch.no_grad():
        for learner in method.learners:
            learner.network.bottleneck[0].weight[0, 0] = float("nan")
    prediction = ask(method, make_images(seed=1))
    assert prediction.probabilities.isfinite().all()
    since = "before the stream" if isinstance(method.guard, Watch) else "1 query ago"  # a copy every ten queries
    assert f"the weights from {since} were restored" in str(prediction.adaptation.restored)
    assert not ask(method, make_images(seed=2)).adaptation.restored


def test_no_gradient_outlives_a_step(make: Callable[..., Method]) -> None:
    method = make()
    ask(method, make_images())
    assert all(weight.grad is None for learner in method.learners for weight in learner.network.parameters())


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """Make `gc` skip the libraries' million existing objects. None of them is a query."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_nothing_of_the_query_remains(make: Callable[..., Method], only_new_objects: None) -> None:
    """After the `with`, only the prediction has as many rows as the query."""
    method = make()
    if method.keeps_target:
        return  # it is refused where burning is on
    images = make_images()
    with Query(images) as query:
        prediction = method.step(query)
    del query
    gc.collect()
    assert not images.any(), "the query's own memory is overwritten"
    allowed = {id(images), id(prediction.probabilities), *map(id, prediction.adaptation.bootstrap)}
    kept = [
        tuple(thing.shape)
        for thing in gc.get_objects()
        if issubclass(type(thing), Tensor)
        and id(thing) not in allowed
        and SIZE in thing.shape[:1]
        and bool(thing.any())
    ]
    assert not kept


def test_predicting_changes_nothing(make: Callable[..., Method]) -> None:
    method = make()
    before = copy_state(method)
    first, second = method.predict(make_images()), method.predict(make_images())
    assert torch.equal(first.probabilities, second.probabilities)
    assert_same_state(before, method.state())


@pytest.fixture(scope="module")
def learned() -> list[dict[str, Tensor]]:
    """The states of two warm learners. Some methods learn only from confident predictions."""
    torch.set_num_threads(1)
    learners = make_learners(make_source(), 2, seed=0, settings=LearnerSettings(warmup=10, warmup_batch=64))
    warm_up(learners, Sequence(threads=1), make_source(), Augment())
    return [learner.state() for learner in learners]


@pytest.mark.parametrize("norm", ["mixed", "running", "query"])
def test_predict_then_adapt_predicts_with_the_previous_weights(
    make: Callable[..., Method], kind: type[Method], learned: list[dict[str, Tensor]], norm: str
) -> None:
    settings = kind.Settings.of(norm=norm)
    learners = make_learners(make_source(), settings.learners, seed=0, settings=settings)
    for learner, state in zip(learners, learned, strict=False):
        learner.load_state(state)
    method = make(order="predict-then-adapt", norm=norm, learners=learners)
    before = method.predict(make_images()).probabilities
    assert torch.equal(ask(method, make_images()).probabilities, before)
    if method.learns:
        assert not torch.equal(method.predict(make_images()).probabilities, before), "it adapts after predicting"


def test_it_continues_from_its_state_with_the_same_bits(make: Callable[..., Method]) -> None:
    method, other = make(seed=0), make(seed=9)
    ask(method, make_images())
    other.load_state({name: value.contiguous().clone() for name, value in method.state().items()})
    for n in range(1, 3):
        one, two = (ask(each, make_images(seed=n)).probabilities for each in (method, other))
        assert torch.equal(one, two)
    assert_same_state(method.state(), other.state())


def test_its_state_contains_no_sample(make: Callable[..., Method]) -> None:
    method = make()
    ask(method, make_images())
    if not method.keeps_target:
        assert not [name for name, value in method.state().items() if SIZE in value.shape]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_adapts_in_every_autograd_mode(make: Callable[..., Method], mode: Callable[[], Any]) -> None:
    expected = ask(make(), make_images()).probabilities
    method = make()
    with mode():
        assert torch.equal(ask(method, make_images()).probabilities, expected)


def test_images_that_require_a_gradient_get_none(make: Callable[..., Method]) -> None:
    images = make_images().requires_grad_()
    with Query(images) as query:
        make().step(query)
    assert images.grad is None


def test_predict_refuses_what_step_refuses(make: Callable[..., Method]) -> None:
    method = make()
    for images in (make_images() * 255, make_images()[:, :, :8], make_images() * float("nan")):
        with pytest.raises(BadQuery):
            method.predict(images)


@pytest.mark.parametrize("learners", ["two", 1.5, -1])
def test_an_invalid_number_of_learners_is_refused(make: Callable[..., Method], learners: object) -> None:
    with pytest.raises(BadSettings):
        make(learners=learners)


def test_an_unknown_setting_is_named(make: Callable[..., Method]) -> None:
    with pytest.raises(BadSettings, match="no setting temperature"):
        make(temperature=3)
