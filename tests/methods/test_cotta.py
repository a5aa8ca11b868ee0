"""CoTTA: teacher, labels, student step and reset, each against its definition."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from crodobo import Source
from crodobo.methods.cotta import CoTTA, restore
from crodobo.views.augment import Augment

WARM = {"warmup": 4, "warmup_batch": 16, "threads": 1, "steps": 1}


def copies(method: CoTTA) -> dict[str, dict[str, Tensor]]:
    learner = method.learners[0]
    parts = {"teacher": learner.network, "student": learner.part("student"), "anchor": learner.part("anchor")}
    return {name: {key: value.clone() for key, value in part.state_dict().items()} for name, part in parts.items()}


@pytest.mark.parametrize("momentum", [0.999, 0.8, 0.0])
def test_the_teacher_moves_towards_the_student_by_the_momentum(
    momentum: float, source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method = CoTTA(source, **WARM, momentum=momentum, restore=0.0, views=2)
    for seed in range(2):
        before = copies(method)
        ask(method, make_images(6, seed))
        after = copies(method)
        assert not torch.equal(after["student"]["bottleneck.0.weight"], before["student"]["bottleneck.0.weight"])
        for name, value in after["teacher"].items():
            if value.is_floating_point():
                expected = momentum * before["teacher"][name] + (1 - momentum) * after["student"][name]
                torch.testing.assert_close(value, expected, atol=1e-7, rtol=1e-6, msg=name)
        assert all(torch.equal(value, before["anchor"][name]) for name, value in after["anchor"].items())


@pytest.mark.usefixtures("_in_double_precision")
def test_the_student_takes_an_adam_step_towards_the_teachers_labels(
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    with_query_statistics: Callable[..., Tensor],
) -> None:
    method = CoTTA(source, **WARM, momentum=0.5, restore=0.0, sure_from=0.0)
    learner = method.learners[0]
    student = deepcopy(learner.part("student")).train()
    optimiser = torch.optim.Adam(student.parameters(), lr=1e-3, foreach=False, fused=False)
    for seed in range(3):
        images = make_images(6, seed)
        labels = with_query_statistics(learner.network, images)  # the teacher's, before it follows
        optimiser.zero_grad()
        (-(labels * torch.log_softmax(student(images), 1)).sum() / len(images)).backward()
        optimiser.step()
        ask(method, images)
    for (name, ours), theirs in zip(learner.part("student").named_parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6, msg=name)


def test_about_one_percent_of_the_student_is_reset_exactly(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    """Compared with a twin without reset that draws and learns the same."""
    methods = [CoTTA(source, **WARM, restore=share, views=1) for share in (0.01, 0.0)]
    for method in methods:
        ask(method, make_images(6))
    restored = moved = 0
    learner, twin = (method.learners[0] for method in methods)
    for ours, theirs, anchor in zip(
        *(part.parameters() for part in (learner.part("student"), twin.part("student"), learner.part("anchor"))),
        strict=True,
    ):
        moved += int((theirs != anchor).sum())
        changed = ours != theirs
        restored += int(changed.sum())
        assert torch.equal(ours[changed], anchor[changed])
    assert moved > 100_000
    assert 0.009 < restored / moved < 0.011


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_none_or_all_of_the_student_is_reset(share: float, generator: Generator) -> None:
    student, anchor = nn.Linear(4, 3), nn.Linear(4, 3)
    before = student.weight.clone()
    restore(student, anchor, share, generator)
    assert torch.equal(student.weight, anchor.weight if share else before)
    assert torch.equal(student.bias, anchor.bias) == bool(share)


class Counting(Augment):
    """Counts the weak views that it makes."""

    def weak(self, images: Tensor, generator: Generator) -> Tensor:
        made.append(len(images))
        return super().weak(images, generator)


made: list[int] = []


@pytest.mark.parametrize(("above", "views"), [(True, 0), (False, 7)])
def test_labels_are_averaged_over_views_only_below_the_bound(
    above: bool,
    views: int,
    source: Source,
    make_images: Callable[..., Tensor],
    with_query_statistics: Callable[..., Tensor],
) -> None:
    """The bound is just below and just above the source model's mean confidence."""
    method = CoTTA(source, **WARM, views=7, augment=Counting())
    learner, images = method.learners[0], make_images(6)
    anchor = learner.part("anchor")
    with torch.no_grad():  # the teacher and the source model are not the same
        learner.network.bottleneck[0].weight.mul_(1 + torch.rand(256, 1, generator=Generator().manual_seed(0)))
    confidence = float(with_query_statistics(anchor, images).amax(1).mean())
    bound = confidence - 1e-4 if above else confidence + 1e-4
    method.settings = method.settings.model_copy(update={"sure_from": bound})
    drawing = Generator()
    drawing.set_state(learner.generator.get_state())
    made.clear()
    labels = method.labels(learner, anchor, images)
    assert made == [6] * views
    seen = [Augment().weak(images, drawing) for _ in range(views)] or [images]
    expected = sum(with_query_statistics(learner.network, view) for view in seen) / len(seen)
    torch.testing.assert_close(labels, expected, atol=1e-5, rtol=1e-4)


def test_the_teacher_predicts(
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    with_query_statistics: Callable[..., Tensor],
) -> None:
    method, images = CoTTA(source, **WARM, adapt_lr=0.05, views=1), make_images(6)
    prediction = ask(method, images).probabilities
    learner = method.learners[0]
    torch.testing.assert_close(prediction, with_query_statistics(learner.network, images), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(prediction, with_query_statistics(learner.part("student"), images), atol=1e-2)


def test_a_query_of_one_uses_running_statistics(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method = CoTTA(source, **WARM, views=2)
    before = copies(method)
    assert ask(method, make_images(1)).adaptation.skipped == 0
    after = copies(method)
    name = "bottleneck.1.running_mean"
    assert torch.equal(before["student"][name], after["student"][name])
