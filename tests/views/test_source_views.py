"""Source views change images as documented, depend on the generator alone, and are chosen by what images look like."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from crodobo import Source
from crodobo.config import SOURCE_VIEWS
from crodobo.errors import BadSettings
from crodobo.methods import CroDoBo
from crodobo.views.augment import Augment
from crodobo.views.background import background
from crodobo.views.chosen_views import ChosenViews
from crodobo.views.colours import colours
from crodobo.views.ground import ground_colour, object_mask
from crodobo.views.source_views import SourceViews
from crodobo.views.style import style
from crodobo.views.zoom import zoom

AUGMENT = Augment(margin=2, strength=0.6)


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def squares(count: int, side: int = 8, ground: float = 0.0, size: int = 32, channels: int = 3) -> Tensor:
    """Bright squares in the middle of an even ground."""
    images = torch.full((count, channels, size, size), ground)
    start = (size - side) // 2
    images[:, :, start : start + side, start : start + side] = 0.9
    return images


@given(
    text=st.sampled_from([*SOURCE_VIEWS, "plain", "mixed", "colours+zoom", "background+style+strong"]),
    count=st.integers(1, 12),
    channels=st.sampled_from([1, 3]),
    with_query=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_views_keep_shape_and_range_and_depend_on_the_generator_alone(
    text: str, count: int, channels: int, with_query: bool, seed: int
) -> None:
    images = torch.rand(count, channels, 12, 16, generator=seeded(seed))
    query = torch.rand(5, channels, 12, 16, generator=seeded(seed + 1)) if with_query else None
    before, views = images.clone(), SourceViews.parse(text)
    made = views.make(images, AUGMENT, seeded(seed), query)
    assert made.shape == images.shape
    assert made.min() >= -1e-6
    assert made.max() <= 1 + 1e-6
    assert torch.equal(images, before)
    assert torch.equal(made, views.make(images, AUGMENT, seeded(seed), query))


def test_plain_views_draw_no_random_number() -> None:
    generator, images = seeded(), squares(4)
    before = generator.get_state()
    assert SourceViews.parse("plain").make(images, AUGMENT, generator) is images
    assert torch.equal(generator.get_state(), before)


def test_colours_map_each_image_to_a_line_between_two_colours() -> None:
    images = torch.rand(64, 1, 8, 8, generator=seeded()).expand(-1, 3, -1, -1)
    made = colours(images, seeded(1))
    changed = (made != images).flatten(1).any(dim=1)
    assert 16 < int(changed.sum()) < 48
    for before, after in zip(images[changed], made[changed], strict=True):
        grey = before[0].flatten()
        for channel in after.flatten(1):  # x ← a + (b − a)·x has the same two numbers everywhere
            slope = (channel[1] - channel[0]) / (grey[1] - grey[0])
            assert torch.allclose(channel, channel[0] + slope * (grey - grey[0]), atol=1e-3)


def test_zoom_shrinks_objects_and_leaves_the_ground() -> None:
    images = squares(200, side=32 - 8, ground=0.3)
    made = zoom(images, seeded())
    sizes = (made[:, 0] > 0.6).float().sum(dim=(1, 2)) / (32 - 8) ** 2
    same = (made == images).flatten(1).all(dim=1)
    assert 30 < int(same.sum()) < 95  # 30 % stay as they are
    assert sizes.max() <= 1.01
    assert sizes.min() < 0.3
    assert torch.allclose(ground_colour(made), torch.tensor(0.3), atol=1e-5)
    middles = [(image[0] > 0.6).nonzero().float().mean(dim=0) for image in made[~same]]
    assert torch.stack(middles).std(dim=0).min() > 2  # placed anywhere


def test_background_changes_the_ground_and_not_the_object() -> None:
    images, query = squares(64), torch.rand(3, 3, 32, 32, generator=seeded(1))
    inside = object_mask(images).expand_as(images) == 1
    for made in (background(images, seeded()), background(images, seeded(), query)):
        changed = (made != images).flatten(1).any(dim=1)
        assert 16 < int(changed.sum()) < 48
        assert torch.allclose(made[inside], images[inside])
    grounds = background(images, seeded(), query)[:, :, 0, 0]
    known = torch.cat([query[:, :, 0, 0], images[:1, :, 0, 0]])
    assert all((known - ground).abs().sum(dim=1).min() < 1e-6 for ground in grounds)


def test_style_takes_the_querys_low_frequencies_and_keeps_the_shapes() -> None:
    images, query = squares(64), 0.4 + 0.1 * torch.rand(8, 3, 32, 32, generator=seeded(1))
    made = style(images, seeded(), query)
    changed = (made != images).flatten(1).any(dim=1)
    assert 16 < int(changed.sum()) < 48
    assert (made[changed].mean(dim=(1, 2, 3)) - query.mean()).abs().max() < 0.1
    assert made[changed][:, :, 16, 16].mean() > made[changed][:, :, 2, 2].mean() + 0.3  # the square is still there
    assert style(images, seeded()) is images


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("colors", "there is no source view 'colors'; the nearest is colours"),
        ("colours+", "there is no source view ''"),
        ("colours+auto", "auto cannot be joined with others"),
        ("", "there is no source view ''"),
    ],
)
def test_unknown_views_are_refused_with_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(BadSettings, match=reason):
        CroDoBo.Settings.of(source_views=text)


def test_settings_spell_views_in_one_way() -> None:
    assert CroDoBo.Settings.of(source_views="colours + zoom").source_views == "zoom+colours"


def test_plain_settings_are_the_papers_unless_given() -> None:
    paper = CroDoBo.Settings.of(plain=True)
    assert (paper.steps, paper.source_views, paper.predict_views) == (1, "plain", 1)
    assert CroDoBo.Settings.of(plain=True, steps=2).steps == 2
    assert CroDoBo.Settings.of(plain="y").steps == 1
    assert CroDoBo.Settings.of().steps > 1


def make_source(images: Tensor) -> Source:
    return Source(images, torch.arange(len(images)) % 2)


def coloured(count: int = 32) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=seeded(3)) * torch.tensor([1, 0.2, 0.5])[:, None, None]


@pytest.mark.parametrize(("side", "wanted"), [(8, "colours"), (32, "zoom+colours")])
def test_a_grey_source_on_a_plain_ground_gets_colours_and_zoom_if_objects_fill_the_frame(
    side: int, wanted: str
) -> None:
    images = torch.zeros(20, 3, 32, 32)
    images[..., 12:20, (32 - side) // 2 : (32 + side) // 2] = 0.9
    views = ChosenViews("auto", make_source(images))
    assert (str(views.now), views.decided) == (wanted, False)
    views.look(coloured())
    assert (str(views.now), views.decided) == (wanted, True)


def test_a_grey_target_gets_the_source_as_it_is_once_enough_is_seen() -> None:
    views = ChosenViews("auto", make_source(squares(20)))
    for _ in range(7):
        views.look(squares(1))
        assert not views.decided
    views.look(squares(1))
    assert (str(views.now), views.decided) == ("plain", True)


def test_a_single_coloured_image_is_enough() -> None:
    views = ChosenViews("auto", make_source(squares(20)))
    views.look(coloured(1))
    assert (str(views.now), views.decided) == ("colours", True)


@pytest.mark.parametrize(
    "images", [torch.rand(20, 3, 32, 32), squares(20, channels=1), torch.rand(20, 1, 32, 32).expand(-1, 3, -1, -1)]
)
def test_other_sources_are_learned_as_they_are(images: Tensor) -> None:
    views = ChosenViews("auto", make_source(images))
    views.look(torch.rand(8, *images.shape[1:]))
    assert str(views.now) == "plain"


def test_views_that_are_named_do_not_depend_on_the_target() -> None:
    views = ChosenViews("colours", make_source(torch.rand(20, 3, 32, 32)))
    views.look(squares(20))
    assert str(views.now) == "colours"
