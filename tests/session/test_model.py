"""A stored model predicts as the method did that left it."""

from pathlib import Path

import pytest
import torch

from crodobo import Augment, Source, load_model
from crodobo.errors import BadWeights
from crodobo.methods import NoAdaptation
from crodobo.session.model import save_model


@pytest.mark.parametrize("views", [1, 2, 4])
def test_a_stored_model_predicts_with_the_same_views(views: int, source: Source, tmp_path: Path) -> None:
    augment = Augment(margin=1, flip=True)
    method = NoAdaptation(source, augment=augment, warmup=2, warmup_batch=8, predict_views=views, threads=1)
    save_model(tmp_path / "model.safetensors", method)
    images = torch.rand(5, *source.shape, generator=torch.Generator().manual_seed(1))
    expected = method.predict(images).probabilities
    stored = load_model(tmp_path / "model.safetensors").predict(images).probabilities
    assert torch.allclose(stored, expected, atol=1e-6)
    if views > 1:
        method.learners[0].views = lambda given: (given,)
        assert not torch.allclose(method.predict(images).probabilities, expected, atol=1e-4)


def test_a_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(BadWeights, match="not a model of crodobo"):
        load_model(tmp_path / "model.safetensors")
