"""Is anything of given images in the memory of a running process?"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from crodobo.audit.patterns import Form, Trace, images_of, traces_of
from crodobo.audit.report import Report
from crodobo.audit.search import Searcher
from crodobo.burn.process import CHUNK, ProcessMemory
from crodobo.config import Fit
from crodobo.errors import BadData

SHOWN = 20  # finds that are named one by one
SHORTEST = 8  # bytes of a pattern; shorter ones are found by chance
UNSEEN = (
    "images that were rescaled, turned or recoloured, and what a network made of them",
    "pages that are not the process's: files in the system's cache, sockets' buffers, other processes, graphics cards",
    "what was there before and is overwritten now: search while images are at work, and after",
)


def audit_memory(
    process: int,
    patterns: list[Path],
    *,
    contents: list[bytes] | None = None,
    sizes: list[int] | None = None,
    fit: str | None = None,
    stop: bool = False,
) -> Report:
    """Look through all memory that a process can write to.

    Parameters
    ----------
    process
        Its number.
    patterns
        Image files to look for, or folders of them.
    contents
        Bytes to look for as they are.
    sizes
        The pixels a side at which the images may have been met; without, their encoded bytes alone are looked for.
    fit
        How they were made square; all ways are looked for if none is given.
    stop
        Hold the process while it is searched, so that nothing moves.
    """
    ways = [way for way in get_args(Fit) if fit in (None, way)]
    forms = [Form(size, grey, way) for size in sorted(set(sizes or ())) for grey in (False, True) for way in ways]
    images = images_of(patterns) if patterns else []
    traces = [trace for image in images for trace in traces_of(image, forms, normalised=True)]
    for number, content in enumerate(contents or (), start=1):
        if len(content) < SHORTEST:
            raise BadData(f"a pattern of {len(content)} bytes is found by chance; give {SHORTEST} or more")
        traces.append(Trace(content, f"pattern {number}", "bytes"))
    if not traces:
        raise BadData("there is nothing to look for; name images with --pattern, or bytes with --bytes")
    report, searcher = Report(unseen=list(UNSEEN)), Searcher(traces)
    memory = ProcessMemory.of(process)
    found: dict[tuple[str, str, str], tuple[int, int]] = {}  # first place, and how many
    scanned = 0
    with contextlib.closing(memory), held(process) if stop else contextlib.nullcontext():
        regions = memory.regions()
        for region in regions:
            try:
                for address, content in memory.read(region, overlap=searcher.longest):
                    scanned += min(CHUNK, len(content))
                    for trace, place in searcher.find(content):
                        if place < CHUNK:
                            key = (region.name, trace.image, trace.form)
                            first, count = found.get(key, (address + place, 0))
                            found[key] = (first, count + 1)
            except OSError as error:
                report.noted.append(f"{region.name} could not be read ({error.strerror})")
    if not scanned:
        report.found.append(f"nothing of process {process} could be read: it has ended")
    report.checked += [
        f"{scanned} bytes in {len(regions)} regions, all that process {process} can write to",
        f"for {len(images)} images in {len({trace.form for trace in traces})} forms, {len(contents or ())} patterns",
    ]
    if images and not sizes:
        report.unseen = ["pixels: give the size at which they are met with --image-size", *report.unseen]
    for (region_name, image, form), (place, count) in list(found.items())[:SHOWN]:
        report.found.append(f"{region_name}: {form} of {image}, {count} pieces, from {place:#x}")
    if len(found) > SHOWN:
        report.found.append(f"and {len(found) - SHOWN} more")
    return report


@contextlib.contextmanager
def held(process: int) -> Iterator[None]:
    """Stop a process inside the block; it goes on after it, whatever happens."""
    try:
        os.kill(process, signal.SIGSTOP)
    except PermissionError:
        raise BadData(f"process {process} may not be stopped; it belongs to somebody else: leave --stop out") from None
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
