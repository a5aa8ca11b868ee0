"""The public source, decoded once into a file of pixels in the cache, which is mapped into memory.

Only for public data. The private target is never written to disk.
"""

import contextlib
import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import __version__ as pillow_version

from crodobo.config import Fit
from crodobo.core.observer import Observer
from crodobo.data import decode
from crodobo.data.cache import cache_folder
from crodobo.data.images import DecodedOnRead, MemoryMapped
from crodobo.data.pictures import Pictures, Shape
from crodobo.engine import available_cores
from crodobo.errors import BadData, BadImage
from crodobo.storage.files import write_atomically
from crodobo.storage.lock import locked_file

CHUNK = 256  # images between two progress records


def load_or_decode(
    pictures: Pictures, shape: Shape, fit: Fit, *, limit: float, observer: Observer
) -> MemoryMapped | DecodedOnRead:
    """Map the decoded pictures from the cache, after decoding them into it if needed.

    The cache holds at most `limit` bytes: the files unused for longest are deleted to make room. If there is still no
    room, the pictures are decoded each time they are read.
    """
    size = len(pictures) * int(np.prod(shape))
    folder = cache_folder() / "images"
    path = folder / f"{_address(pictures, shape, fit)}.u8"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked_file(path.with_suffix(".lock")):  # other processes wait, and then find the file complete
            done, total = _progress(path)
            complete = done == total and _on_disk(path) == size
            problem = None if complete else make_room(folder, size - _on_disk(path), limit, keep=path)
            if not problem:
                if not complete:
                    _decode_all(path, done, pictures, shape, fit, observer)
                os.utime(path)  # the time of its last use
                return MemoryMapped(path, (len(pictures), *shape))
    except OSError as error:
        problem = f"the cache {folder} cannot be used ({error.strerror})"
    observer.note(f"The source takes {size / 1e9:.1f} GB and is decoded each time it is read, slowly: {problem}.")
    return DecodedOnRead(pictures, shape, fit)


def make_room(folder: Path, size: int, limit: float, keep: Path) -> str | None:
    """Delete files from the cache until `size` bytes fit. Returns the problem if they do not, else None."""
    stores = sorted((path for path in folder.glob("*.u8") if path != keep), key=lambda path: path.stat().st_mtime)
    used = sum(_on_disk(path) for path in stores) + _on_disk(keep)
    if size + _on_disk(keep) > limit:
        return f"the cache is limited to {limit / 1e9:.1f} GB (cache_size)"
    for path in stores:
        if used + size <= limit:
            break
        used -= _on_disk(path)
        _marker(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    return None if size < free else f"the disk has {free / 1e9:.1f} GB left"


def _decode_all(path: Path, done: int, pictures: Pictures, shape: Shape, fit: Fit, observer: Observer) -> None:
    """Decode all pictures but those that are done. Progress is recorded chunk by chunk."""
    total, each = len(pictures), int(np.prod(shape))
    begun = min(done, _on_disk(path) // each)
    broken: list[BadImage] = []

    def read(number: int) -> np.ndarray | None:
        try:
            return pictures.read(number, shape, fit)
        except BadImage as error:
            broken.append(error)
            return None

    with path.open("r+b" if path.exists() else "w+b") as file, ThreadPoolExecutor(available_cores()) as pool:
        file.seek(begun * each)
        observer.reading(begun, total)
        for start in range(begun, total, CHUNK):
            numbers = range(start, min(start + CHUNK, total))
            for pixels in pool.map(read, numbers):
                if pixels is not None:
                    file.write(pixels.tobytes())
            if broken:
                first = min(broken, key=str)
                more = f" {len(broken) - 1} more near it cannot be used either." if len(broken) > 1 else ""
                raise BadData(first.problem + more, first.remedy, settings=first.settings)
            file.flush()
            os.fsync(file.fileno())
            write_atomically(_marker(path), json.dumps({"done": numbers.stop, "of": total}))
            observer.reading(numbers.stop, total)


def _address(pictures: Pictures, shape: Shape, fit: Fit) -> str:
    """A digest of everything that decides the pixels: the pictures, the shape, and the code that decodes them."""
    code = Path(decode.__file__).read_bytes()
    made_of = repr((pictures.stamp(), shape, fit, pillow_version)).encode()
    return hashlib.sha256(code + made_of).hexdigest()[:32]


def _marker(path: Path) -> Path:
    return path.with_suffix(".json")


def _progress(path: Path) -> tuple[int, int]:
    """How many pictures are decoded, and of how many."""
    try:
        content = json.loads(_marker(path).read_text(encoding="utf-8"))
        return int(content["done"]), int(content["of"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, -1


def _on_disk(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
