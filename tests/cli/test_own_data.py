"""`crodobo run` and `compare` on images of one's own: every form, every mistake, and nothing of the target kept."""

import csv
import gzip
import io
import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from crodobo import load_source
from crodobo.cli.resolve import choose
from crodobo.session.checkpoint import NAME

Crodobo = Callable[..., tuple[int, str, str]]

CLASSES = {"cat": (200, 40, 40), "dog": (40, 200, 40), "owl": (40, 40, 200)}
TINY = ("--image-size", "16", "--queries", "2", "--query-size", "8", "--warmup", "1", "--method", "source-only")


def picture(name: str, number: int, size: tuple[int, int] = (20, 16)) -> Image.Image:
    """A noisy picture of a class."""
    noise = np.random.default_rng(number).integers(-30, 30, (*size, 3))
    return Image.fromarray((np.array(CLASSES[name]) + noise).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def put_folder(root: Path, each: int = 6, names: dict[str, str] | None = None) -> Path:
    for name in CLASSES:
        for number in range(each):
            path = root / (names or {}).get(name, name) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(picture(name, number)))
    return root


def put_list(root: Path) -> Path:
    put_folder(root / "images")
    lines = [f"images/{name}/{number}.png {name}\n" for name in CLASSES for number in range(6)]
    (root / "list.txt").write_text("".join(lines))
    return root / "list.txt"


def put_csv(root: Path) -> Path:
    put_folder(root / "images")
    with (root / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["animal", "where", "label"])
        writer.writerows([name, f"images/{name}/{number}.png", "-"] for name in CLASSES for number in range(6))
    return root / "table.csv"


def put_parquet(root: Path) -> Path:
    root.mkdir(parents=True)
    pairs = [(name, number) for name in CLASSES for number in range(6)]
    images = [{"bytes": encoded(picture(*pair)), "path": None} for pair in pairs]
    table = pyarrow.table({"picture": images, "kind": [name for name, _ in pairs]})
    parquet.write_table(table, root / "table.parquet", row_group_size=5)
    return root / "table.parquet"


def put_idx(root: Path, packed: bool = False) -> Path:
    root.mkdir(parents=True)
    labels = np.arange(18, dtype=np.uint8) % 3
    pixels = np.stack([np.full((16, 16), 40 + 80 * label, np.uint8) for label in labels])
    for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
        path = root / f"train-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def own(tmp_path: Path, crodobo: Crodobo) -> Callable[..., tuple[int, str, str]]:
    """Run on two folders of images, `source` and `target`, made unless they are there."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        for side in ("source", "target"):
            if not (tmp_path / side).exists():
                put_folder(tmp_path / side)
        paths = ("--source", tmp_path / "source", "--target", tmp_path / "target", "--out", tmp_path / "out")
        return crodobo("run", *paths, *TINY, *arguments)

    return call


def result(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "out/result.json").read_text())
    return content


def predictions(folder: Path) -> list[dict[str, str]]:
    with (folder / "out/predictions.csv").open() as file:
        return list(csv.DictReader(file))


def one_sentence(errors: str) -> str:
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1, errors
    return errors


@pytest.mark.parametrize(
    ("source", "target", "arguments", "classes"),
    [
        (put_folder, put_list, (), list(CLASSES)),
        (put_csv, put_parquet, ("--columns", "where,animal", "--target-columns", "picture, kind"), list(CLASSES)),
        (put_parquet, put_parquet, ("--columns", "picture,kind"), list(CLASSES)),
        (put_idx, lambda root: put_idx(root, True) / "train-images-idx3-ubyte.gz", (), ["0", "1", "2"]),
    ],
    ids=["folder-list", "csv-parquet", "parquet-parquet", "idx-gzipped"],
)
def test_every_form_of_data_runs(
    source: Any, target: Any, arguments: tuple[str, ...], classes: list[str], tmp_path: Path, crodobo: Crodobo
) -> None:
    paths = ("--source", source(tmp_path / "public"), "--target", target(tmp_path / "private"))
    assert crodobo("run", *paths, *TINY, *arguments, "--out", tmp_path / "out", "-q")[::2] == (0, "")
    found = result(tmp_path)
    assert (found["samples"], list(found["per_class_accuracy"])) == (16, classes)
    rows = predictions(tmp_path)
    assert {row["label"] for row in rows} <= set(classes)
    truth = [classes[int(row["sample"]) % 3 if classes[0] == "0" else int(row["sample"]) // 6] for row in rows]
    assert [row["label"] for row in rows] == truth


def test_a_run_is_named_after_its_paths(tmp_path: Path, crodobo: Crodobo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put_folder(tmp_path / "data/public")
    put_folder(tmp_path / "private")
    status, out, _ = crodobo("run", "--source", "data/public", "--target", "private", *TINY, "-q")
    assert status == 0
    assert out.startswith("runs/public-to-private-source-only-k1-seed0")
    settings = json.loads((tmp_path / out.strip() / "result.json").read_text())["settings"]["data"]
    assert settings["source"] == str(tmp_path / "data/public"), "it can be resumed from elsewhere"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--source", "s"], "There is no target. Your own images need a source and a target. (see --source, --target)"),
        (["--target", "s"], "There is no source."),
        (["--columns", "a,b"], "There is no source."),
        (
            ["--grey"],
            "There is no source. Your own images need a source and a target. (see --grey, --source, --target)",
        ),
        (["--data", "s"], "A data folder belongs to a preset, and no preset is named. Name it, or "),
        (["--source", "nowhere", "--target", "s"], "There is no {}/nowhere. Check the path."),
        (["--source", "s", "--target", "nowhere"], "There is no {}/nowhere. Check the path."),
        (
            ["--source", "s", "--target", "s", "--columns", "a"],
            "source_columns cannot be a: write the image column",
        ),
        (
            ["--source", "s", "--target", "s", "--target-columns", "a,b,c"],
            "target_columns cannot be a,b,c: write",
        ),
        (["--source", "s", "--target", "s", "--classes", "no.toml"], "{}/no.toml cannot be read"),
        (
            ["--source", "s", "--target", "s", "--source-limit", "2"],
            "The source cannot be limited to 2 images, because it has 3 classes",
        ),
        (["--source", "s", "--target", "s", "--source-limit", "0"], "source_limit cannot be 0"),
        (["--source", "s", "--target", "s", "--image-size", "4"], "image_size cannot be 4"),
        (["--source", "s", "--target", "s", "--cache-size", "-1"], "cache_size cannot be -1"),
        (["--source", "s", "--target", "s/cat"], "{}/s/cat has no class folders"),
        (["--source", "s", "--target", "s", "--benchmark", "glyphs"], "glyphs has its own data"),
        (["--benchmark", "glyphs", "--grey"], "glyphs has its own data"),
        (["--source", "s/cat/0.png", "--target", "s"], "0.png is a single image. Give a folder of class folders"),
    ],
)
def test_a_wrong_argument_gives_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, crodobo: Crodobo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put_folder(tmp_path / "s", 1)
    status, _, errors = crodobo("run", *TINY, "--out", tmp_path / "out", *arguments)
    assert status == 2
    assert sentence.format(tmp_path) in one_sentence(errors)


def test_an_unknown_fit_is_refused_with_the_choices(own: Crodobo) -> None:
    status, _, errors = own("--fit", "stretch")
    assert status == 2
    assert one_sentence(errors) == ("error: fit cannot be stretch: it must be 'squash', 'crop' or 'pad'. (see --fit)\n")


def test_classes_that_do_not_match_are_refused_with_both_lists(tmp_path: Path, own: Crodobo) -> None:
    put_folder(tmp_path / "target", names={"cat": "Katze", "owl": "Eule"})
    status, _, errors = own()
    assert status == 2
    assert one_sentence(errors).startswith(
        "error: The target has Eule, Katze, which the source does not have. The source has cat, dog, owl; the "
        "target has Eule, Katze, dog. Give the classes common names in a file."
    )


def test_a_file_of_classes_maps_merges_and_drops(tmp_path: Path, own: Crodobo) -> None:
    put_folder(tmp_path / "target", names={"cat": "Katze", "owl": "Eule"})
    (tmp_path / "classes.toml").write_text(
        'names = ["pet", "bird"]\n[source]\ncat = "pet"\ndog = "pet"\nowl = "bird"\n'
        '[target]\nKatze = "pet"\ndog = false\nEule = "bird"\n'
    )
    assert own("--classes", tmp_path / "classes.toml", "--queries", "9")[::2] == (0, "")
    found = result(tmp_path)
    assert list(found["per_class_accuracy"]) == ["pet", "bird"]
    assert found["samples"] == 12
    labels = [row["label"] for row in predictions(tmp_path)]
    assert (labels.count("pet"), labels.count("bird")) == (6, 6)
    assert found["settings"]["data"]["classes"]["source"] == {"cat": "pet", "dog": "pet", "owl": "bird"}


def test_a_class_that_only_the_source_has_is_noted(tmp_path: Path, own: Crodobo) -> None:
    put_folder(tmp_path / "target")
    for path in (tmp_path / "target/owl").iterdir():
        path.unlink()
    status, out, _ = own()
    assert status == 0
    assert "The target has no owl" in " ".join(out.split())


def test_broken_images_end_the_run_unless_they_are_skipped(tmp_path: Path, own: Crodobo) -> None:
    put_folder(tmp_path / "source")
    put_folder(tmp_path / "target")
    broken = [tmp_path / "source/cat/1.png", tmp_path / "target/dog/2.png"]
    for path in broken:
        whole = path.read_bytes()
        path.write_bytes(whole[:200])
        status, _, errors = own("--queries", "9")
        assert status == 2
        assert f"The image {path} cannot be used: it is damaged" in one_sentence(errors)
        path.write_bytes(whole)
    for path in broken:
        path.write_bytes(b"")
    status, out, errors = own("--skip-broken", "--queries", "9", "--fresh")
    assert (status, errors) == (0, "")
    notes = " ".join(out.split())
    assert f"1 of 18 images of {tmp_path / 'source'} cannot be decoded and are left out" in notes
    assert f"1 of 18 images of {tmp_path / 'target'} cannot be decoded and are left out" in notes
    labels = [row["label"] for row in predictions(tmp_path)]
    assert [labels.count(name) for name in CLASSES] == [6, 5, 6]
    assert 17 * 3 * 16 * 16 in [path.stat().st_size for path in (tmp_path / "cache/images").glob("*.u8")]


def test_the_source_can_be_limited_grey_and_cropped(tmp_path: Path, cache: Path, own: Crodobo) -> None:
    assert own("--source-limit", "3", "--grey", "--fit", "crop", "--no-flip")[::2] == (0, "")
    (pixels,) = (cache / "images").glob("*.u8")
    stored = np.frombuffer(pixels.read_bytes(), np.uint8).reshape(3, 16, 16)
    every = {
        np.asarray(picture(name, number).convert("L").crop((0, 2, 16, 18))).tobytes(): name
        for name in CLASSES
        for number in range(6)
    }
    assert {every[image.tobytes()] for image in stored} == set(CLASSES), "at least one of each class"
    data = result(tmp_path)["settings"]["data"]
    assert (data["source_limit"], data["grey"], data["fit"], data["views"]["flip"]) == (3, True, "crop", False)


def test_the_source_is_decoded_once_and_the_cache_does_not_change_the_result(
    tmp_path: Path, own: Crodobo, cache: Path
) -> None:
    assert "decoding the source into the cache: 18/18" in own()[1]
    before = predictions(tmp_path)
    assert "decoding" not in own("--fresh")[1]
    assert len(list((cache / "images").glob("*.u8"))) == 1
    assert predictions(tmp_path) == before
    for path in (cache / "images").iterdir():
        path.unlink()
    status, out, _ = own("--cache-size", "0", "--fresh")
    assert status == 0
    assert "(cache_size)" in out
    assert list((cache / "images").glob("*.u8")) == []
    assert predictions(tmp_path) == before


STOPPED = ("--checkpoint-every", "1", "--stream", "by-class", "--query-size", "6", "--queries", "3")


def stop_in_the_middle(tmp_path: Path, own: Crodobo) -> None:
    """A run that ended at a broken image, with its checkpoint."""
    put_folder(tmp_path / "target")
    for number in range(6):
        (tmp_path / f"target/cat/{number}.png").write_bytes(b"")
    status, _, errors = own(*STOPPED)
    assert status == 2
    assert "cannot be used: it is empty" in errors
    assert (tmp_path / "out" / NAME).exists()


def test_a_checkpoint_is_refused_if_the_images_have_changed(tmp_path: Path, own: Crodobo) -> None:
    stop_in_the_middle(tmp_path, own)
    for number in range(6):
        (tmp_path / f"target/cat/{number}.png").write_bytes(encoded(picture("cat", number)))
    status, _, errors = own(*STOPPED)
    assert status == 2
    assert f"The images or their labels have changed since {tmp_path}/out/{NAME} was made." in one_sentence(errors)
    assert own(*STOPPED, "--fresh")[0] == 0


def test_a_checkpoint_is_refused_if_the_settings_of_the_data_differ(tmp_path: Path, own: Crodobo) -> None:
    stop_in_the_middle(tmp_path, own)
    for argument in (("--grey",), ("--fit", "pad"), ("--source-limit", "9"), ("--skip-broken",)):
        status, _, errors = own(*STOPPED, *argument)
        assert status == 2
        assert f"{argument[0].strip('-').replace('-', '_')} " in one_sentence(errors)


def noise_picture(grey: int) -> Image.Image:
    """A picture that is not resized, with rows that are found again among other bytes."""
    pixels = np.random.default_rng(grey).integers(0, 256, (16, 16), dtype=np.uint8)
    return Image.fromarray(np.stack([pixels] * 3, axis=2))


def byte_patterns(image: Image.Image, content: bytes) -> list[bytes]:
    """What would be on disk if a picture were: a piece of its file, a row of its pixels, whole or as floats."""
    row = np.asarray(image)[8, :, 0]
    return [
        content[len(content) // 2 :][:16],
        row.tobytes(),
        np.repeat(row, 3).tobytes(),
        (row.astype(np.float32) / 255).tobytes(),
        np.repeat(row.astype(np.float32) / 255, 3).tobytes(),
    ]


def found_on_disk(folder: Path, wanted: list[bytes], but_not_in: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file() and but_not_in not in path.parents]
    return [path for path in files if any(trace in path.read_bytes() for trace in wanted)]


@pytest.mark.parametrize("complete", [True, False], ids=["to-the-end", "stopped-by-an-error"])
def test_nothing_of_the_target_is_on_disk(
    complete: bool, tmp_path: Path, crodobo: Crodobo, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    wanted: dict[str, list[bytes]] = {"source": [], "target": []}
    for side, first in (("source", 0), ("target", 100)):
        for number in range(12):
            image = noise_picture(first + number)
            path = tmp_path / side / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
            wanted[side] += byte_patterns(image, path.read_bytes())
    if not complete:
        (tmp_path / "target/b/11.png").write_bytes(b"broken")
    arguments = ("--source", "source", "--target", "target", "--out", "out", "--checkpoint-every", "1", "-q")
    status, _, _ = crodobo("run", *arguments, *TINY, "--method", "crodobo", "--queries", "3", "--query-size", "4")
    assert status == (0 if complete else 2)
    assert complete or (tmp_path / "out" / NAME).exists()
    in_cache = found_on_disk(tmp_path, wanted["source"], tmp_path / "source")
    assert [path.suffix for path in in_cache] == [".u8"], "the public source is found where it should be"
    assert found_on_disk(tmp_path, wanted["target"], tmp_path / "target") == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_no_other_process_decodes_the_target(own: Crodobo, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(os, "posix_spawn", refuse)
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    assert own()[::2] == (0, "")


def test_methods_can_be_compared_on_images_of_the_user(tmp_path: Path, cache: Path, crodobo: Crodobo) -> None:
    put_folder(tmp_path / "source")
    put_folder(tmp_path / "target")
    settings = ("--image-size", "16", "--queries", "2", "--query-size", "8", "--warmup", "1", "--jobs", "1")
    paths = ("--source", tmp_path / "source", "--target", tmp_path / "target", "--out", tmp_path / "out")
    status, out, errors = crodobo(
        "compare", "--methods", "no-adaptation,source-only", "--seeds", "0", *paths, *settings
    )
    assert (status, errors) == (0, "")
    assert "source-only" in out.lower()
    assert (tmp_path / "out/report.html").exists()
    assert len(list((cache / "images").glob("*.u8"))) == 1, "all processes share one store"
    results = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("result.json")]
    assert [found["benchmark"] for found in results] == ["source-to-target"] * 2


def test_sources_with_the_same_name_get_separate_folders(tmp_path: Path, crodobo: Crodobo, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    put_folder(tmp_path / "target")
    for source in ("v1.0", "v1.1", "a/train", "b/train"):
        put_folder(tmp_path / source)
        assert crodobo("run", "--source", source, "--target", "target", *TINY, "-q")[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 4


def test_sources_with_equal_file_times_and_sizes_are_cached_separately(tmp_path: Path) -> None:
    """Archives may give all files one time, and uncompressed images have one size."""
    brightness = []
    for number in (1, 2):
        for name, value in (("a", 50), ("b", 200)):
            folder = tmp_path / str(number) / name
            folder.mkdir(parents=True)
            path = folder / "0.bmp"
            Image.new("L", (16, 16), value if number == 1 else 250 - value).save(path)
            os.utime(path, (1e9, 1e9))
        source = load_source(tmp_path / str(number), image_size=16, grey=True)
        brightness.append([int(source.images[torch.tensor([place])].max()) for place in range(2)])
    assert brightness == [[50, 200], [200, 50]]


def test_a_report_shows_no_images_of_the_user(tmp_path: Path, crodobo: Crodobo) -> None:
    names = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
    for domain in ("cartoon", "photo"):
        for number, name in enumerate(names):
            path = tmp_path / "PACS" / domain / name / f"{number}.png"
            path.parent.mkdir(parents=True)
            path.write_bytes(encoded(picture("cat", number)))
    usual = ["--preset", "pacs/cartoon-photo", "--backbone", "small", *TINY, "-q"]
    shown = {}
    for name, where in (
        ("a preset's", ["--data", tmp_path / "PACS"]),
        ("one's own", ["--data", tmp_path / "PACS", "--target", tmp_path / "PACS" / "photo"]),
    ):
        assert crodobo("run", *usual, *where, "--out", tmp_path / name)[0] == 0
        shown[name] = "data:image/" in (tmp_path / name / "report.html").read_text()
    assert shown == {"a preset's": True, "one's own": False}


def test_a_preset_with_random_weights_gets_a_warm_up_and_a_note(tmp_path: Path, crodobo: Crodobo) -> None:
    chosen = choose({"benchmark": "paper/visda-c", "backbone": "small", "folder": tmp_path})
    assert "warmup" not in chosen.options
    assert "random weights" in chosen.notes[0]
    for given in ({"weights": Path("x.pth")}, {"pretrained": True}, {"warmup": 5}):
        chosen = choose({"benchmark": "paper/visda-c", "backbone": "resnet18", "folder": tmp_path} | given)
        assert chosen.options["warmup"] == given.get("warmup", 0)
        assert not chosen.notes
