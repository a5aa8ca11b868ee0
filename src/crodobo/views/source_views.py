"""Source views: what happens to public images before they meet a query.

The labelled source may be used as often and in as many forms as we like. Where it looks very different from the target,
its form decides more than any loss: a grey garment that fills its frame on black has little in common with a small
coloured one on a person.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from crodobo.config import source_view_names
from crodobo.views.augment import Augment
from crodobo.views.background import background
from crodobo.views.colours import colours
from crodobo.views.strong import random_operation
from crodobo.views.style import style
from crodobo.views.zoom import zoom

FROM_QUERY = ("background", "style")  # these use the query's images while there is one
MIXED = ("strong", "zoom", "colours", "background")  # each image gets one of these, or none


@dataclass(frozen=True)
class SourceViews:
    """The views that source images are shown in, after their weak view.

    `parts` are applied one after the other. With `mixed`, each image gets one of them or none.

    >>> views = SourceViews.parse("colours + zoom")
    >>> views
    SourceViews(parts=('zoom', 'colours'), mixed=False)
    >>> str(views), str(SourceViews())
    ('zoom+colours', 'plain')
    """

    parts: tuple[str, ...] = ()
    mixed: bool = False

    @classmethod
    def parse(cls, text: str) -> "SourceViews":
        """Read the setting of that name."""
        names = source_view_names(text)
        if names == ("mixed",):
            return cls(MIXED, mixed=True)
        return cls(() if names == ("plain",) else names)

    def __str__(self) -> str:
        return "mixed" if self.mixed else "+".join(self.parts) or "plain"

    @property
    def from_query(self) -> bool:
        """Whether the views use the query's images, so that the query must own them."""
        return any(part in FROM_QUERY for part in self.parts)

    def make(self, images: Tensor, augment: Augment, generator: Generator, query: Tensor | None = None) -> Tensor:
        """The views of images in 0..1. `query` holds the images of the query, if there is one."""
        if not self.mixed:
            for part in self.parts:
                images = make_part(part, images, augment, generator, query)
            return images
        drawn = torch.randint(len(self.parts) + 1, (len(images),), generator=generator)
        result = images.clone()
        for number, part in enumerate(self.parts):
            if (chosen := (drawn == number).nonzero().flatten()).numel():
                result[chosen] = make_part(part, images[chosen], augment, generator, query)
        return result


def make_part(part: str, images: Tensor, augment: Augment, generator: Generator, query: Tensor | None) -> Tensor:
    """One view of images."""
    if part == "strong":
        for _ in range(augment.operations):
            images = random_operation(images, augment.strength, generator)
        return images
    if part == "zoom":
        return zoom(images, generator)
    if part == "colours":
        return colours(images, generator)
    return {"background": background, "style": style}[part](images, generator, query)
