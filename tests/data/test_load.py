"""Public data is listed first and decoded later, and every way of loading it gives the same source."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from crodobo.config import Classes, DataSettings
from crodobo.core.observer import Observer
from crodobo.core.source import Source
from crodobo.data import list_public, load_benchmark, load_public, load_source
from crodobo.errors import BadSettings


class Recorder(Observer):
    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def reading(self, done: int, total: int) -> None:
        self.steps.append((done, total))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSettings:
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate(("cat", "dog", "owl")):
        for image in range(2):
            path = tmp_path / "public" / name / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 50 * number + image).save(path)
    return DataSettings(source=tmp_path / "public", target=tmp_path / "public", grey=True)


def same(left: Source, right: Source) -> bool:
    everything = torch.arange(len(left))
    return (
        left.classes == right.classes
        and torch.equal(left.labels, right.labels)
        and torch.equal(left.images[everything], right.images[everything])
    )


def test_a_listing_has_classes_and_a_stamp_without_decoding(data: DataSettings, tmp_path: Path) -> None:
    public = list_public("own", 8, data)
    assert public.classes == ["cat", "dog", "owl"]
    assert public.listing.counts == {"cat": 2, "dog": 2, "owl": 2}
    assert public.stamp.startswith("6 images, ")
    assert not (tmp_path / "cache").exists()
    recorder = Recorder()
    source, augment, stamp, _ = public.load(observer=recorder)
    assert recorder.steps == [(0, 6), (6, 6)]
    assert (len(source), augment, stamp) == (6, public.data.augment, public.stamp)


def test_all_ways_of_loading_give_the_same_source(data: DataSettings) -> None:
    assert data.source
    public = load_public("own", 8, data)
    assert public.stamp == list_public("own", 8, data).stamp
    assert same(public.source, list_public("own", 8, data).load().source)
    assert same(public.source, load_source(data.source, 8, grey=True))
    benchmark = load_benchmark("own", 8, data)
    assert same(public.source, benchmark.source)
    assert public.augment == benchmark.augment


def test_the_stamp_changes_with_images_labels_and_classes(data: DataSettings, tmp_path: Path) -> None:
    def stamp(**settings: object) -> str:
        return list_public("own", 8, data.model_copy(update=settings)).stamp

    before = stamp()
    assert before == stamp(source_limit=3)
    reordered = Classes(names=("owl", "dog", "cat"))
    assert stamp(classes=reordered) != before
    Image.new("L", (8, 8), 7).save(tmp_path / "public/cat/2.png")
    assert stamp() != before


def test_a_built_in_benchmark_has_a_public_half() -> None:
    public, benchmark = load_public("glyphs"), load_benchmark("glyphs")
    assert same(public.source, benchmark.source)
    assert (public.augment, public.stamp) == (benchmark.augment, benchmark.stamp)


@pytest.mark.parametrize("load", [list_public, load_public])
def test_public_data_needs_a_source(load: object) -> None:
    with pytest.raises(BadSettings, match="There is no source") as raised:
        load("own")  # type: ignore[operator]
    assert raised.value.settings == ("source",)


def test_settings_of_the_data_contradict_a_built_in_benchmark(data: DataSettings) -> None:
    with pytest.raises(BadSettings, match="glyphs has its own data"):
        load_benchmark("glyphs", data=data)
