"""Audit the files that a run wrote: do they contain anything of given images?"""

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from crodobo.audit.contents import Content, contents
from crodobo.audit.patterns import DISTINCT, MOST, PIECE, Form, Pattern, find_images, make_forms, patterns_of
from crodobo.audit.report import Report
from crodobo.burn.searcher import Searcher
from crodobo.errors import BadData
from crodobo.storage.tensors import UnreadableTensors, load_header

UNSEEN = (
    "Images that were encoded again, rescaled, mirrored, normalised or otherwise changed, and what a model learned.",
    f"Parts of images: of each form, at most {MOST} pieces of {PIECE} values are searched for, and no plain pieces "
    f"(fewer than {DISTINCT} different values).",
    "Compression other than zip, npz and gzip, base64 that is broken into lines, and encrypted files.",
    "Anything outside the folder: swap, core dumps, snapshots, backups, blocks of deleted files, memory.",
)


def audit_disk(folder: Path, images: list[Path], *, sizes: list[int] | None = None, fit: str | None = None) -> Report:
    """Search all files of a folder for traces of images, given as files or folders.

    `sizes` are the side lengths in pixels that the images may have been resized to; by default those of the models in
    the folder. `fit` says how they were made square; by default all ways are searched for.
    """
    if not folder.is_dir():
        raise BadData(f"There is no folder {folder} to search.", "Check the path.")
    images = find_images(images)
    report = Report(unseen=list(UNSEEN))

    def note_unreadable(path: Path | str, error: OSError) -> None:
        report.found.append(f"{path} is not readable ({error.strerror}) and was not searched.")

    walk = os.walk(folder, onerror=lambda error: note_unreadable(error.filename, error))  # does not follow links
    paths = [Path(place, name) for place, _, names in walk for name in names]
    files = sorted(path for path in paths if path.is_file() and not path.is_symlink())
    sizes = sorted(set(sizes or _model_sizes(files)))
    searcher = Searcher(_patterns(images, make_forms(sizes, fit), report))

    found: dict[str, int] = {}  # file and pattern: first position
    searched = 0
    for path in files:
        try:
            content = _open(path)
        except OSError as error:
            note_unreadable(path, error)
            continue
        searched += len(content)
        for name, unpacked in contents(str(path), content, report.noted.append):
            for pattern, position in searcher.find(unpacked):
                found.setdefault(f"{name}: {pattern.form} of {pattern.image}", position)
    pixels = "".join(f", pixels at {size}×{size} (bytes and floats, CHW and HWC, grey and colour)" for size in sizes)
    report.checked += [
        f"{len(files)} files under {folder}, {searched} bytes, and everything packed in them.",
        f"{len(images)} images: encoded bytes{pixels}.",
    ]
    if not sizes:
        report.unseen.insert(0, "Pixels: no model in the folder tells their size. Give the image size.")
    report.add_found([f"{what}, at byte {position}." for what, position in found.items()])
    return report


def _patterns(images: list[Path], forms: list[Form], report: Report) -> Iterator[Pattern]:
    """Patterns of all images. The report names the images that give none."""
    for image in images:
        searchable = set()
        for pattern in patterns_of(image, forms):
            searchable.add(pattern.form)
            yield pattern
        if "encoded bytes" not in searchable:
            report.noted.append(f"{image} is too small or too plain to search for its encoded bytes.")
        if forms and not searchable - {"encoded bytes"}:
            report.noted.append(f"{image} is too plain to search for its pixels.")


def _open(path: Path) -> Content:
    """A file's content, mapped into memory."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def _model_sizes(files: list[Path]) -> list[int]:
    """The image sizes of the models among the files."""
    sizes = []
    for path in files:
        if path.suffix == ".safetensors":
            with suppress(UnreadableTensors, ValueError, TypeError, KeyError, IndexError):
                sizes.append(int(load_header(path)["shape"][-1]))
    return sizes
