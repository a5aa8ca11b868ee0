"""Source: the labelled public data that stays at hand for the whole stream."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from crodobo.core import pixels
from crodobo.errors import BadSource


class SourceBatch(NamedTuple):
    """A mini-batch of the source: float images in 0..1, their labels, and which samples they are."""

    images: Tensor
    labels: Tensor
    indices: Tensor


class Source:
    """Labelled public images, from which every learner draws its own bootstrap.

    The source holds no state: a draw is decided by the generator that is passed in, so that learners
    can draw at the same time and each repeat its own sequence.

    Parameters
    ----------
    images
        N×C×H×W, uint8 in 0..255 or floats in 0..1; or what reads such images by their numbers.
    labels
        N class numbers, 0 to the number of classes less one.
    classes
        The classes' names; by default the numbers that occur.

    Examples
    --------
    >>> import torch
    >>> source = Source(torch.zeros(4, 1, 8, 8), [0, 1, 0, 1], classes=["cat", "dog"])
    >>> source
    Source(4 samples of 1×8×8, 2 classes)
    >>> batch = source.bootstrap(size=6, generator=torch.Generator().manual_seed(0))
    >>> batch.images.shape, batch.labels.shape
    (torch.Size([6, 1, 8, 8]), torch.Size([6]))
    """

    def __init__(
        self,
        images: Tensor | np.ndarray | pixels.Images,
        labels: Tensor | np.ndarray | Sequence[int],
        classes: Sequence[str] | None = None,
    ) -> None:
        self.images = _checked(images)
        try:
            self.labels = torch.as_tensor(labels)
        except (TypeError, ValueError):
            raise BadSource("the source's labels are not numbers; labels are whole class numbers from 0") from None
        if self.labels.shape != (len(self.images),):
            raise BadSource(
                f"the source has {len(self.images)} images and labels of shape {tuple(self.labels.shape)}; "
                "give one class number for each image"
            )
        if self.labels.is_floating_point():
            raise BadSource(f"the source's labels are {self.labels.dtype}; labels are whole class numbers")
        self.labels = self.labels.long()
        if classes is None and int(self.labels.max()) >= len(self.images):
            raise BadSource(
                f"the source's labels go up to {int(self.labels.max())} with {len(self.images)} images, so that most "
                "classes have none; number the classes from 0, or name them"
            )
        self.classes = tuple(classes) if classes is not None else tuple(map(str, range(int(self.labels.max()) + 1)))
        self._check_labels()

    def _check_labels(self) -> None:
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise BadSource(
                f"the source's labels run from {low} to {high}, but with {len(self.classes)} classes they must "
                f"lie in 0 to {len(self.classes) - 1}; correct the labels or the list of classes"
            )
        counts = torch.bincount(self.labels, minlength=len(self.classes))
        if missing := [name for name, count in zip(self.classes, counts, strict=True) if count == 0]:
            raise BadSource(
                f"the source has no sample of {_shortened(missing)}; a class without samples cannot be learned: "
                "add some, or leave the class out"
            )
        if len(self.classes) < 2:
            raise BadSource("the source has only one class; there is nothing to tell apart")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        channels, height, width = self.shape
        return f"Source({len(self)} samples of {channels}×{height}×{width}, {len(self.classes)} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of a sample."""
        return tuple(self.images.shape[1:])

    def bootstrap(self, size: int, generator: Generator) -> SourceBatch:
        """Draw `size` samples with replacement."""
        indices = torch.randint(len(self), (size,), generator=generator)
        return SourceBatch(pixels.to_unit(self.images[indices]), self.labels[indices], indices)


def _checked(images: Tensor | np.ndarray | pixels.Images) -> pixels.Images:
    """Images that can be learned from."""
    if isinstance(images, np.ndarray):
        images = np.require(images, requirements=["C", "W"])  # a copy only where torch needs one
    elif not isinstance(images, Tensor) and hasattr(images, "__getitem__") and hasattr(images, "dtype"):
        return images  # checked as they are read
    try:
        tensor = pixels.as_tensor(images)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise BadSource(f"the source's images cannot be used ({error})") from None
    if problem := pixels.problem(tensor):
        raise BadSource(f"the source {problem}")
    return tensor


def _shortened(names: list[str], most: int = 8) -> str:
    """A list of names for a sentence.

    >>> _shortened(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
