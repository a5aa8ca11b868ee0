"""Source: the labelled public data."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from crodobo.core import pixels
from crodobo.errors import BadSource

WHOLE_NUMBERS = "Use whole class numbers, starting from 0."


class SourceBatch(NamedTuple):
    """A mini-batch of the source: float images in 0..1, their labels and their numbers."""

    images: Tensor
    labels: Tensor
    indices: Tensor


class Source:
    """Labelled public images, from which every learner draws its own bootstrap.

    The source has no state. The generator that is passed in decides a draw, so learners can draw at the same time and
    each draw is reproducible.

    Parameters
    ----------
    images
        N×C×H×W, uint8 in 0..255 or floats in 0..1; or an object that reads such images by number.
    labels
        N class numbers, starting from 0.
    classes
        The names of the classes; by default their numbers.

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
            raise BadSource("The source's labels are not numbers.", WHOLE_NUMBERS) from None
        samples, shape = len(self.images), tuple(self.labels.shape)
        if shape != (samples,):
            problem = f"The source has {samples} images and labels of shape {shape}."
            raise BadSource(problem, "Give one class number for each image.")
        if self.labels.is_floating_point():
            raise BadSource(f"The source's labels are {self.labels.dtype}.", WHOLE_NUMBERS)
        self.labels = self.labels.long()
        low, high = int(self.labels.min()), int(self.labels.max())
        if classes is None and high >= samples:
            problem = f"The source's labels go up to {high}, but it has only {samples} images."
            raise BadSource(problem, "Number the classes from 0, or name them.")
        self.classes = tuple(map(str, range(high + 1))) if classes is None else tuple(classes)
        if low < 0 or high >= len(self.classes):
            numbered = f"{len(self.classes)} classes are numbered 0 to {len(self.classes) - 1}"
            problem = f"The source's labels run from {low} to {high}, but {numbered}."
            raise BadSource(problem, "Correct the labels or the list of classes.")
        counts = torch.bincount(self.labels, minlength=len(self.classes))
        if missing := [name for name, count in zip(self.classes, counts, strict=True) if count == 0]:
            shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
            raise BadSource(f"The source has no sample of {shown}.", "Add samples, or leave the class out.")
        if len(self.classes) < 2:
            raise BadSource("The source has only one class.", "Give samples of at least two classes.")

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
    """The images, if they are usable."""
    if isinstance(images, np.ndarray):
        images = np.require(images, requirements=["C", "W"])  # a copy only where torch needs one
    elif not isinstance(images, Tensor) and hasattr(images, "__getitem__") and hasattr(images, "dtype"):
        return images  # checked when they are read
    try:
        tensor = pixels.as_tensor(images)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise BadSource(f"The source's images cannot be used ({error}).", "Pass a plain copy.") from None
    if problem := pixels.problem(tensor):
        raise BadSource(f"The source {problem}.")
    return tensor
