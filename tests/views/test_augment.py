"""Views keep shape and range, depend on the generator alone, and change each image as documented."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional as F

from crodobo.views.augment import Augment, random_crop
from crodobo.views.strong import GEOMETRIC, PHOTOMETRIC, random_operation, warp

STRENGTH = 0.6


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=seeded(seed))


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def warped(images: Tensor, kind: str, strength: float) -> Tensor:
    count = len(images)
    return warp(images, torch.full((count,), GEOMETRIC.index(kind)), torch.full((count,), strength))


def close(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, atol=1e-5)


augments = st.builds(
    Augment,
    margin=st.integers(0, 4),
    resize=st.booleans(),
    flip=st.booleans(),
    operations=st.integers(0, 3),
    strength=st.floats(0, 1),
)


@given(
    augment=augments,
    count=st.integers(1, 12),
    channels=st.sampled_from([1, 3]),
    height=st.integers(4, 20),
    width=st.integers(4, 20),
    seed=st.integers(0, 1000),
)
def test_views_keep_shape_type_and_range(
    augment: Augment, count: int, channels: int, height: int, width: int, seed: int
) -> None:
    images = rand(count, channels, height, width, seed=seed)
    before = images.clone()
    for view in (augment.weak(images, seeded(seed)), augment.strong(images, seeded(seed))):
        assert view.shape == images.shape
        assert view.dtype == torch.float32
        assert view.min() >= 0
        assert view.max() <= 1 + 1e-6
    assert torch.equal(images, before)


@given(augment=augments, seed=st.integers(0, 1000))
def test_the_same_generator_state_gives_the_same_views(augment: Augment, seed: int) -> None:
    images = rand(6, 3, 8, 8)
    assert torch.equal(augment.weak(images, seeded(seed)), augment.weak(images, seeded(seed)))
    assert torch.equal(augment.strong(images, seeded(seed)), augment.strong(images, seeded(seed)))


def test_another_generator_state_gives_other_views() -> None:
    images, augment = rand(16, 1, 8, 8), Augment()
    assert not torch.equal(augment.weak(images, seeded(1)), augment.weak(images, seeded(2)))
    assert not torch.equal(augment.strong(images, seeded(1)), augment.strong(images, seeded(2)))


def test_views_do_not_use_the_global_generator() -> None:
    before = torch.get_rng_state()
    Augment(flip=True, operations=3).strong(rand(32, 3, 8, 8), seeded(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("resize", [False, True], ids=["padded", "resized"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_crop_is_a_window_of_the_larger_image_and_every_position_occurs(resize: bool, channels: int) -> None:
    images = rand(150, channels, 5, 7)
    larger = F.interpolate(images, size=(7, 9), mode="bilinear") if resize else F.pad(images, (1, 1, 1, 1))
    places = set()
    for number, view in enumerate(random_crop(images, 1, resize, seeded(0))):
        found = [
            (top, left)
            for top in range(3)
            for left in range(3)
            if close(view, larger[number, :, top : top + 5, left : left + 7])
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) == 9


def test_without_margin_and_flip_the_weak_view_is_the_image() -> None:
    images = rand(16, 3, 8, 8)
    assert torch.equal(Augment(margin=0).weak(images, seeded(0)), images)


def test_images_are_not_mirrored_by_default() -> None:
    images = torch.zeros(64, 1, 9, 9)
    images[..., :3] = 1  # bright on the left: a shift by 2 keeps it there, a mirror does not
    view = Augment(margin=2).weak(images, seeded(0))
    assert (view[..., :4].sum(dim=(1, 2, 3)) > view[..., 5:].sum(dim=(1, 2, 3))).all()


def test_a_flip_mirrors_some_images_and_leaves_the_others() -> None:
    images = rand(64, 3, 6, 6)
    view = Augment(margin=0, flip=True).weak(images, seeded(0))
    kept = (view == images).flatten(1).all(dim=1)
    mirrored = (view == images.flip(-1)).flatten(1).all(dim=1)
    assert (kept ^ mirrored).all()
    assert 16 < int(mirrored.sum()) < 48


def test_a_strong_view_without_operations_is_the_weak_view() -> None:
    images, augment = rand(8, 1, 8, 8), Augment(operations=0, flip=True)
    assert torch.equal(augment.strong(images, seeded(5)), augment.weak(images, seeded(5)))


@pytest.mark.parametrize("kind", GEOMETRIC)
@pytest.mark.parametrize("size", [(8, 8), (5, 9)])
def test_a_warp_of_no_strength_changes_nothing(kind: str, size: tuple[int, int]) -> None:
    images = rand(3, 2, *size)
    assert close(warped(images, kind, 0.0), images)


@pytest.mark.parametrize("pixels", [1, 4, 9])
def test_a_translation_moves_by_its_share_of_the_image(pixels: int) -> None:
    images = rand(2, 3, 20, 40)
    gap = torch.zeros(2, 3, 20, 2 * pixels)
    left = torch.cat([images[..., 2 * pixels :], gap], dim=3)
    right = torch.cat([gap, images[..., : -2 * pixels]], dim=3)
    moved, back = (warped(images, "translate-x", sign * pixels / 9) for sign in (1, -1))  # 0.45 · 1/9 · 40 is 2
    assert (close(moved, left) and close(back, right)) or (close(moved, right) and close(back, left))


def test_a_vertical_translation_is_a_horizontal_one_of_the_transposed_image() -> None:
    images = rand(2, 1, 10, 14)
    across = warped(images.mT, "translate-x", STRENGTH)
    assert close(warped(images, "translate-y", STRENGTH), across.mT)


def test_a_rotation_of_strength_3_is_90_degrees() -> None:
    images = rand(2, 3, 8, 8)
    turns = [torch.rot90(images, times, dims=(2, 3)) for times in (1, -1)]
    one_way, other_way = (warped(images, "rotate", strength) for strength in (3.0, -3.0))
    assert (close(one_way, turns[0]) and close(other_way, turns[1])) or (
        close(one_way, turns[1]) and close(other_way, turns[0])
    )


def test_a_rotation_keeps_distances_in_an_image_that_is_not_square() -> None:
    images = rand(2, 1, 8, 14)
    centre = images[..., 3:11]
    turned = warped(images, "rotate", 3.0)[..., 3:11]
    assert close(turned, torch.rot90(centre, 1, dims=(2, 3))) or close(turned, torch.rot90(centre, -1, dims=(2, 3)))


@pytest.mark.parametrize("size", [(5, 5), (5, 9), (9, 5)])
def test_a_shear_moves_each_row_by_its_distance_from_the_middle(size: tuple[int, int]) -> None:
    height, width = size
    image = rand(1, 1, height, width)
    sheared = warped(image, "shear-x", 1 / 0.3)[0, 0]
    candidates = []
    for sign in (1, -1):
        rows = []
        for row in range(height):
            shift = sign * (row - height // 2)
            padded = F.pad(image[0, 0, row], (height, height))
            rows.append(padded[height + shift : height + shift + width])
        candidates.append(torch.stack(rows))
    assert close(sheared, candidates[0]) or close(sheared, candidates[1])
    upright = warped(image.mT, "shear-y", 1 / 0.3)[0, 0]
    assert close(upright.mT, sheared)


def test_every_image_is_warped_by_its_own_kind_and_amount() -> None:
    images = rand(10, 3, 7, 9)
    kinds, strengths = torch.arange(10) % 5, torch.linspace(-1, 1, 10)
    together = warp(images, kinds, strengths)
    for number in range(10):
        one = slice(number, number + 1)
        assert close(together[one], warp(images[one], kinds[one], strengths[one]))
    assert not close(together, images)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", PHOTOMETRIC)
def test_a_photometric_operation_treats_each_image_by_itself(name: str, channels: int) -> None:
    scales = torch.tensor([0.2, 0.5, 0.9, 1.0])[:, None, None, None]
    images = rand(4, channels, 8, 8) * scales  # all different: a shared mean or range would show
    for strength in (STRENGTH, -STRENGTH):
        together = PHOTOMETRIC[name](images, strength)
        one_by_one = torch.cat([PHOTOMETRIC[name](images[[number]], strength) for number in range(4)])
        assert close(together, one_by_one)


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_goes_through_one_operation_or_none(channels: int) -> None:
    images = rand(150, channels, 8, 8) * 0.8
    before = images.clone()
    view = random_operation(images, STRENGTH, seeded(0))
    signs = (STRENGTH, -STRENGTH)
    options = {"identity": [images]}
    options |= {name: [operation(images, sign) for sign in signs] for name, operation in PHOTOMETRIC.items()}
    options |= {kind: [warped(images, kind, sign) for sign in signs] for kind in GEOMETRIC}
    matches = {
        name: torch.stack([(view - result).abs().flatten(1).amax(dim=1) < 1e-5 for result in results]).any(dim=0)
        for name, results in options.items()
    }
    assert torch.stack(list(matches.values())).any(dim=0).all()
    assert all(found.any() for found in matches.values())
    assert torch.equal(images, before)


@pytest.mark.parametrize("channels", [2, 4])
def test_any_number_of_channels_has_strong_views(channels: int) -> None:
    images = rand(64, channels, 8, 8)
    assert Augment().strong(images, seeded(0)).shape == images.shape
