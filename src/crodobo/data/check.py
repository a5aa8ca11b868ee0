"""Checks of a data set before a run: are the counts right, are all files there?"""

from dataclasses import dataclass

from crodobo.config import Classes, DataSettings
from crodobo.data.classes import natural
from crodobo.data.disk import SIDES, DiskData
from crodobo.data.listing import Listing
from crodobo.data.presets import Domain, Preset
from crodobo.data.selection import find_broken
from crodobo.errors import CrodoboError

DECODED = (3, 32, 32)  # the shape for a trial


@dataclass(frozen=True)
class DomainCheck:
    """The result for one domain. `known` and `total` are the counts that it should have."""

    side: str
    counts: dict[str, int]
    known: dict[str, int]
    total: int | None
    problems: list[str]


def check(preset: Preset, data: DataSettings, *, decode: bool = False) -> list[DomainCheck]:
    """Check both domains. A domain is complete if its finding has no problems."""
    findings, disk_data = [], DiskData(data, preset)
    for side in SIDES:
        domain: Domain = getattr(preset, side)
        counts: dict[str, int] = {}
        try:
            listing = disk_data.read(side)
        except CrodoboError as error:
            problems = [str(error)]
        else:
            counts = listing.counts
            problems = [*_wrong_counts(listing, domain, disk_data.classes), *_missing(listing)]
            if decode and not problems:
                problems = list(find_broken(listing, DECODED, "squash").values())
        findings.append(DomainCheck(side, counts, domain.counts, domain.total, problems))
    return findings


def _wrong_counts(listing: Listing, domain: Domain, classes: Classes) -> list[str]:
    counts, problems = listing.counts, []
    names = sorted(classes.names or domain.counts, key=natural)
    if absent := [name for name in names if name not in counts]:
        problems.append(f"There is no image of {', '.join(absent)}.")
    if unexpected := [name for name in counts if domain.counts and name not in domain.counts]:
        problems.append(f"There are images of unexpected classes: {', '.join(unexpected)}.")
    for name, known in domain.counts.items():
        if name in counts and counts[name] != known:
            problems.append(f"{name} has {counts[name]:,} images, {_difference(counts[name], known)}.")
    total = sum(counts.values())
    if not domain.counts and domain.total and total != domain.total:
        problems.append(f"The total is {total:,}, {_difference(total, domain.total)}.")
    return problems


def _difference(count: int, known: int) -> str:
    return f"{abs(known - count):,} {'fewer' if count < known else 'more'} than the known {known:,}"


def _missing(listing: Listing) -> list[str]:
    missing = listing.pictures.missing()
    more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
    are = "image is" if len(missing) == 1 else "images are"
    return [f"{len(missing):,} {are} listed but missing: {', '.join(missing[:3])}{more}."] if missing else []
