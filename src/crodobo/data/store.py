"""The public source, decoded once: a file of pixels in the cache, made at the first use and mapped ever after.

Only for public data. The private target is never written anywhere.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import __version__ as pillow_version

from crodobo.config import Fit
from crodobo.data import decode
from crodobo.data.cache import cache_folder
from crodobo.data.images import DecodedOnRead, MemoryMapped
from crodobo.data.pictures import Pictures, Shape
from crodobo.engine import available_cores
from crodobo.errors import BadData, BadImage
from crodobo.storage.files import write_atomically

CHUNK = 256  # images between two notes of how far a store is
Progress = Callable[[int, int], None]


def stored(
    pictures: Pictures, shape: Shape, fit: Fit, *, limit: float, progress: Progress, note: Callable[[str], None]
) -> MemoryMapped | DecodedOnRead:
    """The pictures, decoded, from the cache; made there if it has them not yet.

    The cache holds at most `limit` bytes: what was not used for longest makes room. Where there is no room even so,
    the pictures are decoded each time that they are read.
    """
    size = len(pictures) * int(np.prod(shape))
    folder = cache_folder() / "images"
    path = folder / f"{_address(pictures, shape, fit)}.u8"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if not _is_complete(path, size):
                if (room := make_room(folder, size - _on_disk(path), limit, keep=path)) is not None:
                    note(
                        f"the source takes {size / 1e9:.1f} GB decoded and {room}; it is decoded as it is read, slower"
                    )
                    return DecodedOnRead(pictures, shape, fit)
                _decode_all(path, pictures, shape, fit, progress)
            os.utime(path)  # when it was used last
        return MemoryMapped(path, (len(pictures), *shape))
    except OSError as error:
        note(f"the cache {folder} cannot be used ({error.strerror}); the source is decoded as it is read, slower")
        return DecodedOnRead(pictures, shape, fit)


def make_room(folder: Path, size: int, limit: float, keep: Path) -> str | None:
    """Remove stores until one more of that size fits; why it cannot, or None."""
    stores = sorted((path for path in folder.glob("*.u8") if path != keep), key=lambda path: path.stat().st_mtime)
    used = sum(_on_disk(path) for path in stores) + _on_disk(keep)
    if size + _on_disk(keep) > limit:
        return f"the cache may hold {limit / 1e9:.1f} GB (--cache-size)"
    for path in stores:
        if used + size <= limit:
            break
        used -= _on_disk(path)
        _marker(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    return None if size < free else f"the disk has {free / 1e9:.1f} GB left"


def _decode_all(path: Path, pictures: Pictures, shape: Shape, fit: Fit, progress: Progress) -> None:
    """Decode what an earlier attempt has left to do; what is done is noted chunk by chunk."""
    total, each = len(pictures), int(np.prod(shape))
    begun = min(_done(path), _on_disk(path) // each)
    broken: list[str] = []

    def read(number: int) -> np.ndarray | None:
        try:
            return pictures.read(number, shape, fit)
        except BadImage as error:
            broken.append(str(error))
            return None

    with path.open("r+b" if path.exists() else "w+b") as file, ThreadPoolExecutor(available_cores()) as pool:
        file.seek(begun * each)
        progress(begun, total)
        for start in range(begun, total, CHUNK):
            numbers = range(start, min(start + CHUNK, total))
            for pixels in pool.map(read, numbers):
                if pixels is not None:
                    file.write(pixels.tobytes())
            if broken:
                raise BadData(_sentence(broken))
            file.flush()
            os.fsync(file.fileno())
            write_atomically(_marker(path), json.dumps({"done": numbers.stop, "of": total}))
            progress(numbers.stop, total)


def _sentence(broken: list[str]) -> str:
    more = f" (and {len(broken) - 1} more near it)" if len(broken) > 1 else ""
    return f"{sorted(broken)[0]}{more}; put it right, or leave such images out with --skip-broken"


def _address(pictures: Pictures, shape: Shape, fit: Fit) -> str:
    """Everything that decides the pixels: the pictures, the shape, and the code that decodes them."""
    code = Path(decode.__file__).read_bytes()
    made_of = repr((pictures.stamp(), shape, fit, pillow_version)).encode()
    return hashlib.sha256(code + made_of).hexdigest()[:32]


def _marker(path: Path) -> Path:
    return path.with_suffix(".json")


def _done(path: Path) -> int:
    try:
        return int(json.loads(_marker(path).read_text())["done"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _is_complete(path: Path, size: int) -> bool:
    try:
        content = json.loads(_marker(path).read_text())
        return bool(content["done"] == content["of"]) and _on_disk(path) == size
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _on_disk(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the others wait and find the store made."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
