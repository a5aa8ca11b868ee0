"""Parts of a listing: a random sample of it, or the images that can be decoded."""

import random
from concurrent.futures import ThreadPoolExecutor

from crodobo.config import Fit
from crodobo.core.observer import Observer
from crodobo.data.listing import Listing
from crodobo.data.pictures import Shape
from crodobo.engine import available_cores
from crodobo.errors import BadImage, BadSettings


def sample(listing: Listing, limit: int) -> Listing:
    """Draw `limit` images at random, the same each time, with at least one of every class."""
    order = list(range(len(listing.labels)))
    random.Random(0).shuffle(order)
    one_per_class = {listing.labels[number]: number for number in reversed(order)}
    if limit < len(one_per_class):
        problem = f"The source cannot be limited to {limit} images, because it has {len(one_per_class)} classes."
        raise BadSettings(problem, "Choose at least one image per class.", settings=("source_limit",))
    required = set(one_per_class.values())
    others = [number for number in order if number not in required]
    return listing.select(sorted([*required, *others[: limit - len(required)]]))


def without_broken(listing: Listing, shape: Shape, fit: Fit, observer: Observer) -> Listing:
    """Leave out the images that cannot be decoded."""
    total = len(listing.labels)
    if broken := find_broken(listing, shape, fit):
        observer.note(f"{len(broken)} of {total} images of {listing.where} cannot be decoded and are left out.")
    return listing.select([number for number in range(total) if number not in broken])


def find_broken(listing: Listing, shape: Shape, fit: Fit) -> dict[int, str]:
    """The numbers of the images that cannot be decoded, each with the problem."""

    def problem(number: int) -> str | None:
        try:
            listing.pictures.read(number, shape, fit)
        except BadImage as error:
            return error.problem
        return None

    with ThreadPoolExecutor(available_cores()) as pool:
        problems = enumerate(pool.map(problem, range(len(listing.labels))))
        return {number: sentence for number, sentence in problems if sentence}
