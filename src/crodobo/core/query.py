"""Query: a batch of the private target stream that is erased after use."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from crodobo.core import pixels
from crodobo.core.memory import Memory
from crodobo.errors import BadQuery, CrodoboError, QueryBurned


class Query:
    """A target batch that owns its memory: readable inside `with`, overwritten after it.

    The query takes the array over without a copy, so burning overwrites the array that was passed in. Derived tensors
    (views, float copies) are passed to `own` and overwritten too. `wiped` is the number of overwritten bytes.

    Parameters
    ----------
    images
        N×C×H×W, uint8 in 0..255 or floats in 0..1. The query owns it from now on.
    memory
        Where the query's tensors are stored and how they are erased. An `Arena` moves them to its own memory.

    Examples
    --------
    >>> import torch
    >>> images = torch.full((2, 1, 8, 8), 200, dtype=torch.uint8)
    >>> query = Query(images)
    >>> with query:
    ...     len(query), query.shape
    (2, (1, 8, 8))
    >>> int(images.sum()), query.wiped
    (0, 128)
    >>> query.images
    Traceback (most recent call last):
    ...
    crodobo.errors.QueryBurned: This query was burned when its `with` block ended. Read it inside the block.
    """

    def __init__(self, images: Tensor | np.ndarray, memory: Memory | None = None) -> None:
        if isinstance(images, np.ndarray) and not images.flags.writeable:
            raise BadQuery("The query's array is read-only, so it cannot be overwritten.", "Pass a writable copy.")
        try:
            given = pixels.as_tensor(images)
        except (TypeError, ValueError) as error:
            raise BadQuery(f"The query's array cannot be used without a copy ({error}).", "Pass a copy.") from None
        self._memory = memory or Memory()
        self.wiped = 0
        self._images = self._memory.take(given)
        self._owned = [self._images]
        self._state = "closed"

    def __enter__(self) -> Self:
        if self._state == "burned":
            self._read()
        self._state = "open"
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.burn()
        finally:
            _clear_frames(error)

    def __del__(self) -> None:
        if hasattr(self, "_owned"):
            self.burn()

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"Query({self._state})"

    def __reduce__(self) -> NoReturn:
        raise CrodoboError("A query cannot be copied or pickled: only one may exist, and it is erased after use.")

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of a sample."""
        return tuple(self._read().shape[1:])

    @property
    def images(self) -> Tensor:
        """The images in their original format."""
        return self._read()

    def pixels(self) -> Tensor:
        """The images as floats in 0..1. They are overwritten with the query."""
        return self.own(pixels.to_unit(self._read()))

    def own(self, derived: Tensor) -> Tensor:
        """Take over a derived tensor, so that burning overwrites it too. Use the returned tensor instead of it."""
        self._read()
        held = self._memory.take(derived)
        self._owned.append(held)
        return held

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """Burn what the query comes to own inside the block when the block ends, but for what it owned before."""
        kept = list(self._owned)
        try:
            yield
        finally:
            before = {tensor.data_ptr() for tensor in kept}  # a view may be the image itself
            derived = [tensor for tensor in self._owned[len(kept) :] if tensor.data_ptr() not in before]
            self._owned = kept
            self._burn(derived)

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise `BadQuery` if the images are unusable or do not have the shape that the model expects."""
        if wrong := pixels.misfit(self._read(), shape):
            raise BadQuery(f"The query {wrong}.", "It was refused, and no weight has changed.")

    def burn(self) -> None:
        """Overwrite everything that the query owns with zeros and release it. Calling it again is harmless."""
        self._state = "burned"
        owned, self._owned, self._images = self._owned, [], torch.empty(0)
        self._burn(owned)

    def _burn(self, owned: list[Tensor]) -> None:
        wiped, failed = self._memory.burn(owned)
        self.wiped += wiped
        if failed:
            raise CrodoboError(f"A tensor of the query could not be overwritten ({failed}). All others were.")

    def _read(self) -> Tensor:
        if self._state == "burned":
            raise QueryBurned("This query was burned when its `with` block ended.", "Read it inside the block.")
        if self._state == "closed":
            raise CrodoboError(
                "The query is not open.", "Read it inside `with query:`, which makes sure that it is erased."
            )
        return self._images


def _clear_frames(error: BaseException | None) -> None:
    """Clear the local variables that a traceback keeps alive. They may hold parts of the query."""
    errors, seen = [error], set()
    while errors:
        if (error := errors.pop()) and id(error) not in seen:
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            errors += [error.__cause__, error.__context__]
