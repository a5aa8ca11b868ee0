"""Shifts keep shape and range, and change images more the stronger they are."""

import pytest
import torch

from crodobo.views.shifts import SHIFTS, STRENGTHS


@pytest.mark.parametrize("shape", [(8, 1, 16, 16), (5, 3, 20, 12)])
@pytest.mark.parametrize("name", SHIFTS)
def test_a_stronger_shift_changes_images_more(name: str, shape: tuple[int, ...]) -> None:
    images = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    kept, changes = images.clone(), []
    for strength in STRENGTHS:
        shifted, again = (SHIFTS[name](images, strength, torch.Generator().manual_seed(0)) for _ in range(2))
        assert torch.equal(shifted, again)
        assert shifted.shape == images.shape
        assert 0 <= float(shifted.min()) <= float(shifted.max()) <= 1 + 1e-6
        changes.append(float((shifted - images).abs().mean()))
    assert torch.equal(images, kept)
    assert changes[0] > 0
    assert changes == sorted(changes)
