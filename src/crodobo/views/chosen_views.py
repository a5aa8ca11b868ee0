"""ChosenViews: which source views suit a source and its target, chosen without labels.

Three facts decide, all easy to see in the pixels: whether images have colours, whether they have a plain ground, and
whether objects are cut out so that they fill their frame.

- A grey source on a plain ground gets *colours*, and *zoom* too if its objects fill their frame.
- This is for targets with colours only. On a grey target such views do harm, so the source is learned as it is.
- Every other source is learned as it is.

The target is not known when the learners learn the source. So they learn it twice, once in each form, and the first
images of the target decide which learners meet the stream.
"""

import torch
from torch import Tensor

from crodobo.core import pixels
from crodobo.core.source import Source
from crodobo.views.ground import border
from crodobo.views.source_views import SourceViews
from crodobo.views.zoom import extent

EXAMINED = 256  # images of the source
NEAR = 0.06  # how far a pixel of the border may be from its usual colour to be part of a plain ground
PLAIN = 0.7  # share of the border that has its usual colour from which a ground is plain
FILLED = 0.9  # mean extent of objects from which they fill their frame
GREY = 0.02  # mean range of the channels below which images are grey
SURE = 8  # images of the target after which it counts as grey, if they are grey on average


class ChosenViews:
    """The source views of a method: as the settings say, or chosen by what source and target look like.

    >>> views = ChosenViews("auto", Source(torch.zeros(4, 3, 8, 8), [0, 1, 0, 1]))
    >>> str(views.now), views.decided
    ('colours', False)
    >>> views.look(torch.zeros(8, 3, 8, 8))  # a grey target
    True
    >>> str(views.now)
    'plain'
    """

    def __init__(self, text: str, source: Source) -> None:
        self.warm_up = choose_for(source) if text == "auto" else SourceViews.parse(text)
        self.open = text == "auto" and bool(self.warm_up.parts)  # whether the target decides
        self.target = torch.zeros(2, dtype=torch.float64)  # images of the target, and how colourful they are in all

    @property
    def decided(self) -> bool:
        """Whether enough is known of the target."""
        count, colourful = self.target.tolist()
        return not self.open or count >= SURE or colourful > GREY * max(count, 1)

    @property
    def now(self) -> SourceViews:
        """The views to use from here on."""
        count, colourful = self.target.tolist()
        grey = self.open and self.decided and colourful <= GREY * count
        return SourceViews() if grey else self.warm_up

    def look(self, images: Tensor) -> bool:
        """Look at the first images of the target, and say whether they have decided.

        Only their number and mean colourfulness are kept.
        """
        if self.decided:
            return False
        self.target += torch.tensor([len(images), float(colourfulness(images).sum())])
        return self.decided


def choose_for(source: Source) -> SourceViews:
    """The views of a source for targets with colours."""
    if source.shape[0] < 3:
        return SourceViews()  # without colour channels the target is grey too
    chosen = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:EXAMINED]
    images = pixels.to_unit(source.images[chosen])
    if colourfulness(images).mean() > GREY or plainness(images).mean() < PLAIN:
        return SourceViews()
    return SourceViews(("zoom", "colours") if extent(images).mean() >= FILLED else ("colours",))


def colourfulness(images: Tensor) -> Tensor:
    """How far the channels of each image are apart, on average over its pixels."""
    return (images.amax(dim=1) - images.amin(dim=1)).mean(dim=(1, 2))


def plainness(images: Tensor) -> Tensor:
    """The share of each image's border that has its usual colour."""
    edge = border(images)
    near = (edge - edge.median(dim=-1, keepdim=True).values).abs().amax(dim=1) < NEAR
    return near.float().mean(dim=1)
