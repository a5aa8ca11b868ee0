"""What all tests share."""

import pytest
import torch
from hypothesis import settings

from crodobo.source import Source

settings.register_profile("crodobo", max_examples=25, deadline=None, derandomize=True, database=None)
settings.load_profile("crodobo")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors gain nothing from more, and a test may have left another number behind."""
    torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def source() -> Source:
    """40 noisy images of 1×16×16 in four classes, each with another quarter lit; easy to learn."""
    random = torch.Generator().manual_seed(7)
    labels = torch.arange(40) % 4
    images = torch.rand(40, 1, 16, 16, generator=random) * 0.3
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 8 * (label // 2), 8 * (label % 2)
        image[:, top : top + 8, left : left + 8] += 0.6
    return Source(images, labels)
