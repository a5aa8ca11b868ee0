"""Is anything of given images in the files that a run has written?"""

import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from safetensors import SafetensorError, safe_open

from crodobo.audit.contents import Content, contents
from crodobo.audit.patterns import DISTINCT, MOST, PIECE, Form, Trace, images_of, traces_of
from crodobo.audit.report import Report
from crodobo.audit.search import Searcher
from crodobo.config import Fit
from crodobo.errors import BadData

SHOWN = 20  # finds that are named one by one
UNSEEN = (
    "pictures that were encoded anew, rescaled, mirrored, normalised or otherwise changed; what a model has learned",
    f"parts of a picture: at most {MOST} stretches of {PIECE} values in each form are looked for, none that is plain "
    f"(fewer than {DISTINCT} different values)",
    "what is compressed otherwise than as zip, npz or gzip, base64 that is broken into lines, encrypted files",
    "files elsewhere: swap, core dumps, snapshots, backups, blocks of deleted files, and memory",
)


def audit_disk(folder: Path, patterns: list[Path], *, sizes: list[int] | None = None, fit: str | None = None) -> Report:
    """Look through all files of a folder for traces of images.

    Parameters
    ----------
    folder
        What a run has written.
    patterns
        Image files to look for, or folders of them.
    sizes
        The pixels a side at which they may have been met; those of the models in the folder if none is given.
    fit
        How they were made square; all ways are looked for if none is given.
    """
    if not folder.is_dir():
        raise BadData(f"there is no folder {folder} to look through; check its path")
    images = images_of(patterns)
    files, report = sorted(_files(folder)), Report(unseen=list(UNSEEN))
    sizes = sorted(set(sizes or _model_sizes(files)))
    ways = [way for way in get_args(Fit) if fit in (None, way)]
    forms = [Form(size, grey, way) for size in sizes for grey in (False, True) for way in ways]
    searcher = Searcher(_traces(images, forms, report))

    found: dict[tuple[str, str, str], int] = {}
    looked = 0
    for path in files:
        try:
            content = _open(path)
        except OSError as error:
            report.found.append(f"{path} could not be read ({error.strerror}), so nothing is known of it")
            continue
        looked += len(content)
        for name, unpacked in contents(str(path), content, report.noted.append):
            for trace, place in searcher.find(unpacked):
                found.setdefault((name, trace.image, trace.form), place)
    report.checked += [
        f"{len(files)} files under {folder}, {looked} bytes, and what is packed in them",
        f"for {len(images)} images: their encoded bytes"
        + "".join(
            f", their pixels at {size}×{size} (bytes and floats, CHW and HWC, grey and colour)" for size in sizes
        ),
    ]
    if not sizes:
        report.unseen.insert(0, "pixels: no model in the folder tells their size; give it with --image-size")
    for (name, image, form), place in list(found.items())[:SHOWN]:
        report.found.append(f"{name}: {form} of {image}, at byte {place}")
    if len(found) > SHOWN:
        report.found.append(f"and {len(found) - SHOWN} more")
    return report


def _traces(images: list[Path], forms: list[Form], report: Report) -> Iterator[Trace]:
    """Traces of all images; those that leave none are told of."""
    for image in images:
        forms_found = set()
        for trace in traces_of(image, forms):
            forms_found.add(trace.form)
            yield trace
        if "encoded bytes" not in forms_found:
            report.noted.append(f"{image} is too small or too plain for its encoded bytes to be looked for")
        if forms and not forms_found - {"encoded bytes"}:
            report.noted.append(f"{image} is too plain for its pixels to be looked for")


def _files(folder: Path) -> Iterator[Path]:
    """All regular files, hidden ones too; links are not followed."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _open(path: Path) -> Content:
    """A file's content, mapped into memory."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def _model_sizes(files: list[Path]) -> list[int]:
    """The sizes of images that models among the files take."""
    sizes = []
    for path in files:
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="numpy") as file:
                    header = json.loads((file.metadata() or {}).get("crodobo", "{}"))
                    sizes += [int(header["shape"][-1])] if "shape" in header else []
            except (SafetensorError, OSError, ValueError, TypeError, KeyError, IndexError):
                continue
    return sizes
