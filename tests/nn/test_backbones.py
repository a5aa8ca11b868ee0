"""Backbones by name, for grey and coloured images, with weights from a file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from crodobo.errors import BadSettings, BadWeights
from crodobo.nn.backbones import Backbone, build_backbone


def seeded(name: str, shape: tuple[int, ...], seed: int = 0, weights: Path | None = None) -> Backbone:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_backbone(name, shape, weights=weights)


@torch.no_grad()
def features(backbone: Backbone, images: Tensor) -> Tensor:
    result: Tensor = backbone.network(images)
    return result


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("small", (1, 32, 32), 128),
        ("small", (3, 20, 28), 128),
        ("small", (4, 16, 16), 128),
        ("small-groupnorm", (1, 32, 32), 128),
        ("resnet18", (1, 32, 32), 512),
        ("resnet18", (3, 32, 32), 512),
        ("vit_tiny_patch16_224", (3, 32, 32), 192),
        ("vit_tiny_patch16_224", (1, 32, 48), 192),
        ("torchvision/mobilenet_v2", (1, 32, 32), 1280),
        ("torchvision/mobilenet_v2", (3, 32, 32), 1280),
    ],
)
def test_a_backbone_has_the_stated_number_of_features(name: str, shape: tuple[int, ...], expected: int) -> None:
    backbone = build_backbone(name, shape)
    images = torch.rand(2, *shape)
    given = features(backbone, images)
    assert given.shape == (2, expected)
    assert backbone.features == expected
    assert not torch.equal(given[0], given[1])
    assert len(backbone.mean) == len(backbone.std)
    assert len(backbone.mean) in (1, shape[0])
    assert not backbone.pretrained


def test_a_grey_image_is_a_coloured_one_with_equal_channels() -> None:
    grey = seeded("torchvision/mobilenet_v2", (1, 32, 32))
    colour = seeded("torchvision/mobilenet_v2", (3, 32, 32))
    images = torch.rand(2, 1, 32, 32)
    assert torch.allclose(features(grey, images), features(colour, images.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(
    ("name", "near"),
    [("resnet81", "resnet18"), ("smal", "small"), ("torchvision/mobilenetv2", "torchvision/mobilenet_v2")],
)
def test_an_unknown_name_suggests_similar_ones(name: str, near: str) -> None:
    with pytest.raises(BadSettings, match=rf"no backbone '{name}'. Did you mean .*\b{near}\b"):
        build_backbone(name, (3, 32, 32))


@pytest.mark.parametrize("name", ["qqqqqqqq", "", "elsewhere/qqqqqqq"])
def test_a_name_without_similar_ones_is_refused(name: str) -> None:
    with pytest.raises(BadSettings, match=f"no backbone '{name}'"):
        build_backbone(name, (3, 32, 32))


def test_an_unknown_tag_of_a_known_network_is_refused() -> None:
    with pytest.raises(BadSettings, match="resnet18"):
        build_backbone("resnet18.nonsense", (3, 32, 32))


def test_images_that_a_network_cannot_process_are_refused() -> None:
    with pytest.raises(BadSettings, match=r"cannot process images of 4×32×32 .*Choose another backbone"):
        build_backbone("torchvision/mobilenet_v2", (4, 32, 32))


def test_the_small_backbone_has_no_pretrained_weights() -> None:
    with pytest.raises(BadSettings, match="no pretrained weights"):
        build_backbone("small", (1, 32, 32), pretrained=True)


def test_two_sources_of_initial_weights_are_refused() -> None:
    with pytest.raises(BadSettings, match="Choose one of them"):
        build_backbone("small", (1, 32, 32), pretrained=True, weights="weights.pth")


@pytest.mark.parametrize(
    ("name", "maker"), [("resnet18", "timm.create_model"), ("torchvision/resnet18", "torchvision.models.get_model")]
)
def test_a_failed_download_of_pretrained_weights_is_reported(
    name: str, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(maker, offline)
    with pytest.raises(BadWeights, match=rf"weights of {name} are not available \(OSError\).*give a weights file"):
        build_backbone(name, (3, 32, 32), pretrained=True)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_are_loaded_from_a_file(tmp_path: Path, suffix: str) -> None:
    made, images, path = seeded("small", (1, 16, 16), seed=1), torch.rand(2, 1, 16, 16), tmp_path / f"w{suffix}"
    state = made.network.state_dict()
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    loaded = seeded("small", (1, 16, 16), seed=2, weights=path)
    assert torch.equal(features(loaded, images), features(made, images))
    assert loaded.pretrained


@pytest.mark.parametrize("wrap", ["state_dict", "model"])
def test_weights_are_loaded_from_a_trainers_checkpoint(tmp_path: Path, wrap: str) -> None:
    made, images = seeded("small", (1, 16, 16), seed=1), torch.rand(2, 1, 16, 16)
    state = {f"module.{key}": value for key, value in made.network.state_dict().items()}
    torch.save({wrap: state, "epoch": 3}, tmp_path / "w.pth")
    loaded = seeded("small", (1, 16, 16), seed=2, weights=tmp_path / "w.pth")
    assert torch.equal(features(loaded, images), features(made, images))


@pytest.mark.parametrize("name", ["resnet18", "torchvision/mobilenet_v2"])
def test_the_classifier_in_a_weights_file_is_ignored(tmp_path: Path, name: str) -> None:
    channels = 1 if "/" in name else 3  # a grey image must not change the names in the file
    made, images = seeded(name, (channels, 32, 32), seed=1), torch.rand(2, channels, 32, 32)
    state = {key.removeprefix("network."): value for key, value in made.network.state_dict().items()}
    head = {"fc.weight": torch.zeros(9, 512), "fc.bias": torch.zeros(9), "classifier.1.weight": torch.zeros(9, 1280)}
    save_file(state | head, tmp_path / "w.safetensors")
    loaded = seeded(name, (channels, 32, 32), seed=2, weights=tmp_path / "w.safetensors")
    assert torch.equal(features(loaded, images), features(made, images))


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    state, path = seeded("small", (1, 16, 16)).network.state_dict(), tmp_path / "w.safetensors"
    cases = {
        r"it lacks stem\.0\.weight\.": {key: value for key, value in state.items() if key != "stem.0.weight"},
        r"it lacks stem\.0\.weight and \d+ more": {"stem.1.weight": state["stem.1.weight"]},
        r"it has unknown layer9\.weight\.": state | {"layer9.weight": torch.zeros(1)},
        r"it has another shape for stem\.0\.weight\.": state | {"stem.0.weight": torch.zeros(32, 3, 3, 3)},
    }
    for sentence, given in cases.items():
        save_file(given, path)
        with pytest.raises(BadWeights, match=f"does not fit small: {sentence}"):
            build_backbone("small", (1, 16, 16), weights=path)


def test_the_same_seed_makes_the_same_network() -> None:
    images = torch.rand(2, 1, 16, 16)
    first, again, other = (features(seeded("small", (1, 16, 16), seed), images) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
