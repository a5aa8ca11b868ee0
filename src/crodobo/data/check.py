"""Looking a data set over before anything is run on it: counts against the known ones, files that are not there."""

from dataclasses import dataclass, field

from crodobo.config import DataSettings
from crodobo.data.assemble import broken, classes_of, read_source, read_target
from crodobo.data.classes import natural
from crodobo.data.listing import Listing
from crodobo.data.presets import Domain, Preset
from crodobo.errors import CrodoboError

DECODED = (3, 32, 32)  # the size at which images are tried


@dataclass(frozen=True)
class Finding:
    """What was found of one domain."""

    side: str
    counts: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    total: int | None = None
    problems: list[str] = field(default_factory=list)


def check(preset: Preset, data: DataSettings, *, decode: bool = False) -> list[Finding]:
    """Look both domains over; a finding without problems is as it should be."""
    findings = []
    for side, read, domain in (("source", read_source, preset.source), ("target", read_target, preset.target)):
        try:
            listing = read(data, preset)
        except CrodoboError as error:
            findings.append(Finding(side, known=domain.counts, total=domain.total, problems=[str(error)]))
            continue
        problems = [*_wrong_counts(listing, domain, preset, data), *_missing(listing)]
        if decode and not problems:
            problems = list(broken(listing, DECODED, "squash").values())
        findings.append(Finding(side, listing.counts, domain.counts, domain.total, problems))
    return findings


def _wrong_counts(listing: Listing, domain: Domain, preset: Preset, data: DataSettings) -> list[str]:
    counts, problems = listing.counts, []
    names = sorted(classes_of(data, preset).names or domain.counts, key=natural)
    if absent := [name for name in names if name not in counts]:
        problems.append(f"no image of {', '.join(absent)}")
    if strange := [name for name in counts if domain.counts and name not in domain.counts]:
        problems.append(f"images of {', '.join(strange)}, which it should not have")
    for name, known in domain.counts.items():
        if name in counts and counts[name] != known:
            problems.append(f"{name} has {counts[name]:,} images, {_difference(counts[name], known)}")
    total = sum(counts.values())
    if not domain.counts and domain.total and total != domain.total:
        problems.append(f"{total:,} images in all, {_difference(total, domain.total)}")
    return problems


def _difference(count: int, known: int) -> str:
    return f"{abs(known - count):,} {'fewer' if count < known else 'more'} than the known {known:,}"


def _missing(listing: Listing) -> list[str]:
    missing = listing.pictures.missing()
    more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
    are = "image is" if len(missing) == 1 else "images are"
    return [f"{len(missing):,} {are} listed but not there: {', '.join(missing[:3])}{more}"] if missing else []
