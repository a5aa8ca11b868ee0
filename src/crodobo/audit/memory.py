"""Audit a running process: does its memory contain anything of given images?"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from crodobo.audit.patterns import Pattern, find_images, make_forms, patterns_of
from crodobo.audit.report import Report
from crodobo.burn.process import CHUNK, ProcessMemory
from crodobo.burn.searcher import Searcher
from crodobo.errors import BadData

SHORTEST = 8  # bytes; shorter patterns are found by chance
UNSEEN = (
    "Images that were rescaled, rotated or recoloured, and what a network made of them.",
    "Memory outside the process: the system's file cache, socket buffers, other processes, graphics cards.",
    "Memory that is overwritten by now: search while images are being processed, and afterwards.",
)


def audit_memory(
    process: int,
    images: list[Path],
    *,
    contents: list[bytes] | None = None,
    sizes: list[int] | None = None,
    fit: str | None = None,
    stop: bool = False,
) -> Report:
    """Search all memory that a process can write to for images, given as files or folders, and for other `contents`.

    `sizes` are the side lengths in pixels that the images may have been resized to; by default only their encoded bytes
    are searched for. `fit` says how they were made square; by default all ways are searched for. `stop` stops the
    process during the search, so that nothing moves.
    """
    images = find_images(images) if images else []
    forms = make_forms(sizes or (), fit)
    patterns = [pattern for image in images for pattern in patterns_of(image, forms, normalised=True)]
    for number, content in enumerate(contents or (), start=1):
        if len(content) < SHORTEST:
            raise BadData(f"A pattern of {len(content)} bytes is found by chance.", f"Give {SHORTEST} bytes or more.")
        patterns.append(Pattern(content, f"pattern {number}", "bytes"))
    if not patterns:
        raise BadData("There is nothing to search for.", "Name images or bytes.", settings=("pattern", "bytes"))
    report, searcher, memory = Report(unseen=list(UNSEEN)), Searcher(patterns), ProcessMemory.of(process)
    found: dict[str, tuple[int, int]] = {}  # region and pattern: first address, count
    scanned = 0
    with contextlib.closing(memory), stopped(process) if stop else contextlib.nullcontext():
        regions = memory.regions()
        for region in regions:
            try:
                for address, content in memory.read(region, overlap=searcher.longest):
                    scanned += min(CHUNK, len(content))
                    for pattern, position in searcher.find(content):
                        if position < CHUNK:
                            what = f"{region.name}: {pattern.form} of {pattern.image}"
                            first, count = found.get(what, (address + position, 0))
                            found[what] = (first, count + 1)
            except OSError as error:
                report.noted.append(f"{region.name} is not readable ({error.strerror}).")
    if not scanned:
        report.found.append(f"Nothing of process {process} was readable: it has ended.")
    report.checked += [
        f"{scanned} bytes in {len(regions)} regions: all that process {process} can write to.",
        f"{len(images)} images in {len({pattern.form for pattern in patterns})} forms, {len(contents or ())} patterns.",
    ]
    if images and not sizes:
        report.unseen.insert(0, "Pixels: give the image size that the process works with.")
    report.add_found([f"{what}, {count} pieces, from {first:#x}." for what, (first, count) in found.items()])
    return report


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    """Stop a process inside the block. It always continues afterwards."""
    try:
        os.kill(process, signal.SIGSTOP)
    except PermissionError:
        problem = f"Process {process} cannot be stopped: it belongs to another user."
        raise BadData(problem, "Search it while it runs.", settings=("stop",)) from None
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
