"""Images that are too many for memory. They are indexed like a tensor and read when they are asked for."""

import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crodobo.config import Fit
from crodobo.data.pictures import Pictures, Shape
from crodobo.engine import available_cores


class DecodedOnRead:
    """Pictures that are decoded by threads of this process whenever they are read, and kept nowhere."""

    dtype = torch.uint8

    def __init__(self, pictures: Pictures, shape: Shape, fit: Fit) -> None:
        self.shape = (len(pictures), *shape)
        self._pictures, self._fit = pictures, fit

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, numbers: Tensor) -> Tensor:
        batch = torch.empty((len(numbers), *self.shape[1:]), dtype=torch.uint8)

        def read(place: int, number: int) -> None:
            pixels = torch.from_numpy(self._pictures.read(number, self.shape[1:], self._fit))
            batch[place] = pixels
            pixels.zero_()  # numpy caches small freed arrays with their content

        places = numbers.argsort()  # in order, each row group of a Parquet table is read only once
        with ThreadPoolExecutor(available_cores()) as pool:
            list(pool.map(read, places.tolist(), numbers[places].tolist()))
        return batch


class MemoryMapped:
    """Decoded images in a file. Only the ones that are read come into memory."""

    dtype = torch.uint8

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.shape = shape
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._array = np.frombuffer(self._map, np.uint8, count=int(np.prod(shape))).reshape(shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, numbers: Tensor) -> Tensor:
        batch = torch.from_numpy(self._array[numbers.numpy()])
        self._map.madvise(mmap.MADV_DONTNEED)  # the pages stay in the system's cache, not in this process
        return batch
