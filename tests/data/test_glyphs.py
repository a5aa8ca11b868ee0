"""The glyphs benchmark: printed digits to handwriting."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import crodobo.data
from crodobo.data import Benchmark, load_benchmark
from crodobo.data.glyphs import render_digits
from crodobo.errors import BadSettings
from crodobo.methods import get_method


@pytest.fixture(scope="module")
def glyphs() -> Benchmark:
    return load_benchmark("glyphs")


def test_the_source_is_12_000_printed_digits_in_balanced_classes(glyphs: Benchmark) -> None:
    assert glyphs.source.images.shape == (12_000, 1, 32, 32)
    assert torch.bincount(glyphs.source.labels).tolist() == [1200] * 10
    assert glyphs.source.classes == tuple("0123456789")


def test_the_target_is_5_000_handwritten_digits_in_balanced_classes(glyphs: Benchmark) -> None:
    assert glyphs.images.shape == (5_000, 1, 32, 32)
    assert glyphs.images.dtype == torch.uint8
    assert torch.bincount(glyphs.labels).tolist() == [500] * 10


def test_no_image_is_blank(glyphs: Benchmark) -> None:
    for images in (glyphs.source.images, glyphs.images):
        assert images.flatten(1).amax(dim=1).min() > 50


def test_the_stream_is_79_queries_and_the_last_is_short(glyphs: Benchmark) -> None:
    sizes = [len(labels) for _, labels in glyphs.stream(64, seed=0)]
    assert sizes == [64] * 78 + [8]


def test_digits_are_never_mirrored(glyphs: Benchmark) -> None:
    assert not glyphs.augment.flip


def test_the_seed_decides_the_rendering() -> None:
    first, again, other = (render_digits(60, seed) for seed in (3, 3, 4))
    assert (first[0] == again[0]).all()
    assert (first[1] == again[1]).all()
    assert (first[0] != other[0]).any()
    assert (first[1] != other[1]).any()


def test_a_digit_looks_more_like_its_own_class_than_like_the_others() -> None:
    images, labels = render_digits(1000, seed=1)
    pixels = torch.from_numpy(images).float().flatten(1)
    classes = torch.from_numpy(labels)
    means = torch.stack([pixels[:800][classes[:800] == number].mean(dim=0) for number in range(10)])
    nearest = torch.cdist(pixels[800:], means).argmin(dim=1)
    assert (nearest == classes[800:]).float().mean() > 0.25  # chance is 0.1


def test_glyphs_can_be_resized() -> None:
    smaller = load_benchmark("glyphs", image_size=16)
    assert smaller.source.shape == (1, 16, 16)
    assert smaller.images.shape == (5_000, 1, 16, 16)
    assert smaller.images.dtype == torch.uint8


def test_the_error_about_an_unknown_benchmark_names_the_known_ones() -> None:
    with pytest.raises(BadSettings, match=r"There is no benchmark 'visda'. Choose glyphs or a preset"):
        load_benchmark("visda")
    with pytest.raises(BadSettings, match=r"There is no benchmark 'glyph'. Did you mean glyphs\?"):
        load_benchmark("glyph")
    with pytest.raises(BadSettings, match=r"There is no method 'crodob'. Did you mean crodobo\?"):
        get_method("crodob")


EXTRAS = ("mlxtend", "matplotlib", "jinja2", "pyarrow")


def run_without(packages: tuple[str, ...], program: str, cache: Path) -> str:
    """Run a program in a process where these packages cannot be imported, and return its output."""
    block = f"import sys; sys.modules.update(dict.fromkeys({packages!r}))\n"
    environment = os.environ | {"CRODOBO_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", block + program], env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_no_module_of_the_data_needs_an_extra(tmp_path: Path) -> None:
    modules = ["crodobo", *(f"crodobo.data.{module.name}" for module in pkgutil.iter_modules(crodobo.data.__path__))]
    assert "crodobo.data.glyphs" in modules
    assert run_without(EXTRAS, f"import {', '.join(modules)}; print('fine')", tmp_path) == "fine\n"


@pytest.mark.parametrize("package", ["mlxtend", "matplotlib"])
def test_without_the_extra_the_error_says_what_to_install(package: str, tmp_path: Path) -> None:
    program = """
from crodobo import CrodoboError, load_benchmark
try:
    load_benchmark("glyphs")
except CrodoboError as error:
    print(error.problem, error.remedy, sep="\\n")
"""
    assert run_without((package,), program, tmp_path).splitlines() == [
        f"The benchmark glyphs needs {package}, which is not installed.",
        'Install it with `pip install "crodobo[benchmarks]"`.',
    ]
