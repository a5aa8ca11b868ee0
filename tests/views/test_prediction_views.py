"""Prediction views: which there are, and that an answer is the mean over them."""

import pytest
import torch
from torch import Generator

from crodobo import Augment, CroDoBo, Source
from crodobo.views.augment import enlarge
from crodobo.views.prediction import prediction_views


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 1, 16, 16, generator=Generator().manual_seed(0))


def test_the_mirror_image_comes_before_crops() -> None:
    first, mirrored, cropped = prediction_views(images(), 3, Augment(margin=2, flip=True))
    assert torch.equal(first, images())
    assert torch.equal(mirrored, images().flip(-1))
    assert torch.equal(cropped[:, :, 2:, 2:], images()[:, :, :-2, :-2])


def test_there_are_only_as_many_views_as_are_allowed() -> None:
    assert len(list(prediction_views(images(), 6, Augment(margin=0)))) == 1
    assert len(list(prediction_views(images(), 6, Augment(margin=0, flip=True)))) == 2
    assert len(list(prediction_views(images(), 2, Augment(margin=2)))) == 1
    assert len(list(prediction_views(images(), 3, Augment(margin=2)))) == 2
    assert len(list(prediction_views(images(), 6, Augment(margin=2, flip=True)))) == 6


def test_an_answer_is_the_mean_over_the_views_and_erases_their_copies() -> None:
    source = Source(torch.rand(20, 1, 16, 16), [0, 1] * 10)
    method = CroDoBo(source, warmup=1, augment=Augment(margin=0, flip=True), predict_views=2)
    learner = method.learners[0]
    made = []

    def remembered(given: torch.Tensor) -> list[torch.Tensor]:
        made.extend(prediction_views(given, 2, method.augment))
        return made

    both = (learner.predict(images()) + learner.predict(images().flip(-1))) / 2
    learner.views = remembered
    assert torch.allclose(learner.answer(images()), both, atol=1e-6)
    assert float(made[1].abs().sum()) == 0


def test_crops_leave_nothing_of_the_enlarged_images(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Tensor] = []

    def remembered(*arguments: object) -> torch.Tensor:
        made.append(enlarge(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr("crodobo.views.prediction.enlarge", remembered)
    list(prediction_views(images(), 6, Augment(margin=2, flip=True)))
    assert len(made) == 4
    assert not any(larger.any() for larger in made)
