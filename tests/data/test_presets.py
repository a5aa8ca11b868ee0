"""Presets run on imitations of the real layouts with the paper's settings; errors name the problem with a copy."""

import csv
import gzip
import json
import os
import pickle
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from crodobo.cli.resolve import choose
from crodobo.config import DataSettings
from crodobo.data import load_benchmark
from crodobo.data.presets import get_preset, is_preset, preset_names
from crodobo.errors import BadSettings
from crodobo.methods import CroDoBo

Crodobo = Callable[..., tuple[int, str, str]]

VISDA = [
    "aeroplane",
    "bicycle",
    "bus",
    "car",
    "horse",
    "knife",
    "motorcycle",
    "person",
    "plant",
    "skateboard",
    "train",
    "truck",
]
CLOTHES = ["t-shirt", "trouser", "pullover", "dress", "coat", "shirt"]
PACS = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
OFFICE = ["Alarm_Clock", "back_pack", "bike"]
DROPPED = 250  # brightness of images that must not be used
TINY = ("--backbone", "small", "--random", "--image-size", "16", "--queries", "2", "--query-size", "8", "--warmup", "1")


def grey_of(number: int) -> int:
    """Images of a class have its brightness."""
    return 10 + 18 * number


def put(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 18), (grey,) * 3).save(path, quality=95)


def put_classes(folder: Path, names: list[str], each: int = 2, suffix: str = ".jpg") -> None:
    for number, name in enumerate(names):
        for image in range(each):
            put(folder / name / f"{image:04d}{suffix}", grey_of(number))


def put_idx(folder: Path, labels: list[int], greys: list[int], side: int = 28) -> None:
    folder.mkdir(parents=True)
    pixels = np.array(greys, np.uint8)[:, None, None].repeat(side, 1).repeat(side, 2)
    for name, array in (("images-idx3", pixels), ("labels-idx1", np.array(labels, np.uint8))):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes(), 1))


def visda(root: Path) -> None:
    for part, name in (("train", "src_1_{:05d}.png"), ("validation", "{}_{:06d}.jpg")):
        lines = []
        for number, kind in enumerate(VISDA):
            for image in range(2):
                file = name.format(image) if part == "train" else name.format(kind, image)
                put(root / part / kind / file, grey_of(number))
                lines.append(f"{kind}/{file} {number}")
        (root / part / "image_list.txt").write_text("\n".join(lines) + "\n")


def covid_da(root: Path) -> None:
    (root / "data").mkdir(parents=True)

    def images(folder: str, key: str, count: int, grey: int | None = None) -> list[tuple[str, int]]:
        entries = [(f"{key}-{number}.png", number % 2) for number in range(count)]
        for name, label in entries:
            put(root / folder / ("deeper" if label else ".") / name, grey_of(label) if grey is None else grey)
        return entries

    source, target = "all_data/all_data_pneumonia", "all_data/all_data_covid"
    pneumonia = {"train_list": images(source, "train", 8), "val_list": images(source, "val", 2, DROPPED)}
    covid = {
        "train_list_labeled": images(target, "labelled", 2, DROPPED),
        "train_list_unlabeled": images(target, "unlabelled", 12),
        "val_list": images(target, "val", 2, DROPPED),
        "test_list": images(target, "test", 6),
    }
    (root / "data/pneumonia_task_for_python3.pkl").write_bytes(pickle.dumps(pneumonia))
    (root / "data/COVID-19_task_for_python3.pkl").write_bytes(pickle.dumps(covid))


def camelyon17(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    rows = []
    for center, split, count in ((0, 0, 4), (3, 0, 4), (4, 0, 2), (0, 1, 2), (1, 0, 4), (2, 0, 10), (2, 1, 8)):
        wanted = center == 2 or (center in (0, 3, 4) and split == 0)
        for number in range(count):
            patient, node, x, y, tumor = f"{20 * center + split:03d}", center, 100 * number, 7, number % 2
            case = f"patient_{patient}_node_{node}"
            file = root / f"patches/{case}/patch_{case}_x_{x}_y_{y}.png"
            put(file, grey_of(tumor) if wanted else DROPPED)
            rows.append([len(rows), patient, node, x, y, tumor, 3, center, split])
    with (root / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"])
        writer.writerows(rows)


def fashion_mnist(folder: Path) -> None:
    kept = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 6: 5}  # Fashion-MNIST's numbers, and those of the six classes
    labels = list(range(10)) * 2
    put_idx(folder, labels, [grey_of(kept[label]) if label in kept else DROPPED for label in labels])


def fashion(root: Path) -> None:
    fashion_mnist(root / "fashion-mnist")
    kinds = [("Anorak", 4), ("Blouse", 5), ("Cardigan", None), ("Tee", 0), ("Jeans", 1), ("Sweater", 2)]
    kinds += [("Dress", 3), ("Henley", 5)]
    categories, partitions = [], []
    for place, (kind, number) in enumerate(kinds, start=1):
        for part in ("train", "train", "val", "test", "left out"):
            name = f"img/{kind}_{part[:2]}/img_{len(categories):08d}.jpg"
            categories.append(f"{name}   {place}")
            if part != "left out":
                partitions.append(f"{name} {part}")
            seen = number is not None and part != "left out"
            put(root / "deepfashion/Img" / name, grey_of(number or 0) if seen else DROPPED)
    put_table(root, "Anno/list_category_cloth.txt", "category_name  category_type", [f"{kind}  1" for kind, _ in kinds])
    put_table(root, "Anno/list_category_img.txt", "image_name  category_label", categories)
    put_table(root, "Eval/list_eval_partition.txt", "image_name  evaluation_status", partitions)


def put_table(root: Path, name: str, head: str, rows: list[str]) -> None:
    path = root / "deepfashion" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([str(len(rows)), head, *rows]) + "\n")


def fashion_photos(root: Path) -> None:
    fashion_mnist(root / "fashion-mnist")
    put_classes(root / "clothing", CLOTHES, 3)


def digits(root: Path) -> None:
    put_idx(root / "mnist", list(range(10)) * 2, [grey_of(number) for number in range(10)] * 2)
    put_classes(root / "usps", list("0123456789"), suffix=".png")
    put_classes(root / "mnist_m", list("0123456789"), suffix=".png")


def pacs(root: Path) -> None:
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        put_classes(root / domain, PACS, 3)


def office(*folders: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for folder in folders:
            put_classes(root / folder, OFFICE, 6)

    return make


TREES: dict[str, tuple[Callable[[Path], None], list[str], int, int]] = {  # how it is made; classes, source, target
    "paper/visda-c": (visda, VISDA, 24, 24),
    "paper/visda-c-hrnet": (visda, VISDA, 24, 24),
    "paper/covid-da": (covid_da, ["normal", "disease"], 8, 18),
    "paper/camelyon17": (camelyon17, ["normal", "tumour"], 10, 18),
    "paper/fashion": (fashion, CLOTHES, 12, 28),
    "fashion-photos": (fashion_photos, CLOTHES, 12, 18),
    "digits/mnist-usps": (digits, list("0123456789"), 20, 20),
    "digits/mnistm-mnist": (digits, list("0123456789"), 20, 20),
    "pacs/art-photo": (pacs, PACS, 21, 21),
    "pacs/sketch-cartoon": (pacs, PACS, 21, 21),
    "office-31/amazon-webcam": (office("amazon/images", "dslr/images", "webcam/images"), OFFICE, 18, 18),
    "office-home/art-real": (office("Art", "Clipart", "Product", "Real World"), OFFICE, 18, 18),
    "office-caltech/caltech-dslr": (office("amazon", "caltech", "dslr", "webcam"), OFFICE, 18, 18),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[str], Path]:
    """Create an imitation of a preset's data, and return its folder."""

    def make(name: str) -> Path:
        TREES[name][0](tmp_path / "data")
        return tmp_path / "data"

    return make


def one_sentence(errors: str) -> str:
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1, errors
    return errors


@pytest.mark.parametrize("name", TREES)
def test_every_image_has_the_label_of_its_class(name: str, tree: Callable[[str], Path]) -> None:
    benchmark = load_benchmark(name, 16, DataSettings(folder=tree(name)))
    _, classes, in_source, in_target = TREES[name]
    assert list(benchmark.source.classes) == classes
    assert (len(benchmark.source), len(benchmark.labels)) == (in_source, in_target)
    for images, labels in ((benchmark.source.images, benchmark.source.labels), (benchmark.images, benchmark.labels)):
        seen = images[torch.arange(len(labels))].flatten(1).float().mean(1)
        assert (seen - torch.tensor([grey_of(number) for number in labels.tolist()])).abs().max() < 3
        assert set(labels.tolist()) == set(range(len(classes)))


@pytest.mark.parametrize("name", [name for name in TREES if name not in ("digits/mnistm-mnist", "pacs/sketch-cartoon")])
def test_a_preset_runs_from_end_to_end(
    name: str, tree: Callable[[str], Path], tmp_path: Path, crodobo: Crodobo
) -> None:
    folder, out = tree(name), tmp_path / "out"
    classes = TREES[name][1]
    arguments = ("--data", folder, "--out", out, "--method", "source-only", "--source-limit", str(len(classes)))
    assert crodobo("run", "--preset", name, *arguments, *TINY, "-q") == (0, f"{out}\n", "")
    result = json.loads((out / "result.json").read_text())
    assert (result["benchmark"], result["samples"], result["queries"]) == (name, 16, 2)
    assert list(result["per_class_accuracy"]) == classes
    metric = "class-average" if "visda" in name else "accuracy"
    assert result["metric"] == metric == get_preset(name).metric
    assert result["one_pass"] == result["one_pass_class_average" if "visda" in name else "one_pass_accuracy"]
    (pixels,) = (tmp_path / "cache/images").glob("*.u8")
    assert pixels.stat().st_size == len(classes) * 3 * 16 * 16


def test_all_presets_are_tried_here() -> None:
    tried = {name if name in preset_names() else f"{name.partition('/')[0]}/FROM-TO" for name in TREES}
    assert tried == set(preset_names())


@pytest.mark.parametrize(
    ("name", "backbone", "pretrained", "size", "classes", "metric"),
    [
        ("paper/visda-c", "resnet101.tv_in1k", True, 224, VISDA, "class-average"),
        ("paper/visda-c-hrnet", "hrnet_w48.ms_in1k", True, 224, VISDA, "class-average"),
        ("paper/covid-da", "resnet18.tv_in1k", True, 224, ["normal", "disease"], "accuracy"),
        ("paper/camelyon17", "densenet121", False, 96, ["normal", "tumour"], "accuracy"),
        ("paper/fashion", "resnet101.tv_in1k", True, 224, CLOTHES, "accuracy"),
    ],
)
def test_settings_of_the_paper(
    name: str, backbone: str, pretrained: bool, size: int, classes: list[str], metric: str, tmp_path: Path
) -> None:
    chosen = choose({"benchmark": name, "folder": tmp_path})
    options = CroDoBo.Settings.of(**chosen.options)
    assert (options.backbone, options.pretrained, options.norm, options.warmup) == (backbone, pretrained, "running", 0)
    assert (options.learners, options.tau, options.lam, options.order) == (2, 0.95, 0.4, "adapt-then-predict")
    assert (chosen.run["query_size"], chosen.run["image_size"]) == (64, size)
    preset = get_preset(name)
    assert (list(preset.classes.names or ()), preset.metric) == (classes, metric)


def test_arguments_override_the_preset(tmp_path: Path) -> None:
    given = {"backbone": "resnet18", "image_size": 64, "norm": "mixed", "warmup": 5, "query_size": 16, "flip": False}
    chosen = choose({"benchmark": "paper/fashion", "folder": tmp_path} | given)
    given_or_preset = {"backbone": "resnet18", "norm": "mixed", "warmup": 5, "plain": True}
    assert chosen.options == given_or_preset  # without weights, which are of the preset's network
    assert (chosen.run["image_size"], chosen.run["query_size"]) == (64, 16)
    assert chosen.run["data"].views.flip is False


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("paper/visda-c", 152_397, 55_388),
        ("paper/visda-c-hrnet", 152_397, 55_388),
        ("paper/camelyon17", 302_436, 85_054),
        ("paper/fashion", 36_000, None),
        ("fashion-photos", 36_000, None),
        ("digits/mnist-usps", 60_000, 7_291),
        ("pacs/photo-art", 1_670, 2_048),
        ("pacs/cartoon-sketch", 2_344, 3_929),
        ("office-31/amazon-webcam", 2_817, 795),
        ("office-31/dslr-amazon", 498, 2_817),
        ("office-home/art-clipart", 2_427, 4_365),
        ("office-home/product-real", 4_439, 4_357),
        ("office-caltech/amazon-caltech", 958, 1_123),
        ("office-caltech/webcam-dslr", 295, 157),
    ],
)
def test_known_totals(name: str, source: int, target: int | None) -> None:
    preset = get_preset(name)
    assert (preset.source.total, preset.target.total) == (source, target)
    for domain in (preset.source, preset.target):
        assert sum(domain.counts.values()) in (0, domain.total)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "pacs",
            "pacs does not name two domains of pacs, which are art, cartoon, photo, sketch. Write, for example, "
            "pacs/art-cartoon.",
        ),
        ("pacs/art-art", "pacs/art-art does not name two domains"),
        ("pacs/art", "pacs/art does not name two domains"),
        ("digits/mnist-svhn", "domains of digits, which are mnist, usps, mnistm"),
        ("paper/visda", "There is no preset 'paper/visda'. Did you mean paper/visda-c?"),
        ("something", "There is no preset 'something'. Choose one of paper/camelyon17, paper/covid-da"),
    ],
)
def test_an_unknown_preset_is_an_error(name: str, sentence: str) -> None:
    with pytest.raises(BadSettings) as raised:
        get_preset(name)
    assert sentence in str(raised.value)


def test_names_of_presets() -> None:
    assert preset_names()[:5] == [
        f"paper/{name}" for name in ("camelyon17", "covid-da", "fashion", "visda-c", "visda-c-hrnet")
    ]
    assert "digits/FROM-TO" in preset_names()
    assert is_preset("pacs/art-photo")
    assert not is_preset("glyphs")
    assert not is_preset("paper/imagenet")


def test_domains_at_alternative_paths(tmp_path: Path) -> None:
    put_classes(tmp_path / "kfold/art_painting", PACS)
    put_classes(tmp_path / "photo", PACS)
    benchmark = load_benchmark("pacs/art-photo", 16, DataSettings(folder=tmp_path))
    assert (len(benchmark.source), len(benchmark.labels)) == (14, 14)


def test_domains_in_separate_folders(tmp_path: Path, tree: Callable[[str], Path]) -> None:
    folder = tree("paper/fashion")
    (folder / "fashion-mnist").rename(tmp_path / "elsewhere")
    apart = DataSettings(source=tmp_path / "elsewhere", target=folder / "deepfashion")
    mixed = DataSettings(source=tmp_path / "elsewhere", folder=folder)
    for data in (apart, mixed):
        benchmark = load_benchmark("paper/fashion", 16, data)
        assert (len(benchmark.source), len(benchmark.labels)) == (12, 28)


def test_deepfashion_with_coarse_annotations_and_lists_in_its_root(tree: Callable[[str], Path]) -> None:
    folder = tree("paper/fashion")
    root = folder / "deepfashion"
    (root / "Anno").rename(root / "Anno_coarse")
    (root / "Eval/list_eval_partition.txt").rename(root / "list_eval_partition.txt")
    (root / "Img/img").rename(root / "img")
    assert len(load_benchmark("paper/fashion", 16, DataSettings(folder=folder)).labels) == 28


def test_lists_of_the_older_version_of_covid_da(tree: Callable[[str], Path]) -> None:
    folder = tree("paper/covid-da")
    new = folder / "data/COVID-19_task_for_python3.pkl"
    lists = pickle.loads(new.read_bytes())
    lists["train_list"] = lists.pop("train_list_unlabeled")
    (folder / "COVID-19_task.pkl").write_bytes(pickle.dumps(lists, protocol=2))
    new.unlink()
    (folder / "all_data/all_data_covid").rename(folder / "all_data_covid")
    assert len(load_benchmark("paper/covid-da", 16, DataSettings(folder=folder)).labels) == 18


class Harmful:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["CRODOBO_CACHE"] + "-harm",)


def edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda root: (root / name).write_text(change((root / name).read_text()))


def remove(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def pickled(content: Any) -> Callable[[Path], None]:
    return lambda root: (root / "data/COVID-19_task_for_python3.pkl").write_bytes(pickle.dumps(content))


def truncate(name: str) -> Callable[[Path], None]:
    return lambda root: os.truncate(root / name, 300)


CATEGORIES = "deepfashion/Anno/list_category_img.txt"


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("paper/visda-c", remove("train/image_list.txt"), "There is no {}/train/image_list.txt"),
        ("paper/visda-c", remove("validation/image_list.txt"), "There is no {}/validation/image_list.txt"),
        ("paper/visda-c", remove("train/bus/src_1_00001.png"), "{}/train/bus/src_1_00001.png cannot be read (No such"),
        ("paper/visda-c", remove("validation/bus/bus_000001.jpg"), "{}/validation/bus/bus_000001.jpg cannot be read"),
        ("paper/visda-c", truncate("validation/car/car_000000.jpg"), "car_000000.jpg cannot be used: it is damaged"),
        (
            "paper/visda-c",
            edit("train/image_list.txt", lambda text: text.replace(" 3\n", " 4\n")),
            "The target has car, which the source does not have. The source has aeroplane, bicycle, bus, horse,",
        ),
        (
            "paper/visda-c",
            edit("validation/image_list.txt", lambda text: text.replace(" 11", " 12")),
            "target has 12",
        ),
        (
            "paper/visda-c",
            edit("train/image_list.txt", lambda text: text + "one\n"),
            "Line 25 of {}/train/image_list.txt",
        ),
        ("paper/camelyon17", remove("metadata.csv"), "There is no {}/metadata.csv. Compare the folder with the layout"),
        ("paper/camelyon17", edit("metadata.csv", lambda text: text.replace("tumor", "t")), "has no column tumor"),
        ("paper/camelyon17", edit("metadata.csv", lambda text: text[:-8]), "Row 35 of {}/metadata.csv has no tumor"),
        ("paper/camelyon17", remove("patches/patient_040_node_2/patch_patient_040_node_2_x_0_y_7.png"), "_x_0_y_7.png"),
        ("paper/fashion", remove(CATEGORIES), "There is no {}/deepfashion/Anno/list_category_img.txt"),
        (
            "paper/fashion",
            edit(CATEGORIES, lambda text: "".join(text.splitlines(True)[:20])),
            "list_category_img.txt has 18 rows, but its first line says 40",
        ),
        (
            "paper/fashion",
            edit(CATEGORIES, lambda text: "x" + text),
            "img.txt does not consist of a number",
        ),
        (
            "paper/fashion",
            edit(CATEGORIES, lambda text: text.replace("   8\n", "   9\n")),
            "the category 9, but there are 8",
        ),
        (
            "paper/covid-da",
            remove("data/pneumonia_task_for_python3.pkl"),
            "There is no {}/data/pneumonia_task_for_python3",
        ),
        ("paper/covid-da", pickled({"lists": []}), "no list train_list_unlabeled. It has lists"),
        ("paper/covid-da", pickled([1]), "does not contain named lists"),
        ("paper/covid-da", pickled({"train_list": [3], "test_list": []}), "The entry 3 in train_list of"),
        (
            "paper/covid-da",
            pickled({"train_list": 3, "test_list": []}),
            "for_python3.pkl is not a list",
        ),
        (
            "paper/covid-da",
            pickled({"train_list": Harmful()}),
            "cannot be read as lists of names and labels (it con",
        ),
        ("paper/covid-da", pickled({"train_list": [("gone.png", 1)], "test_list": []}), "gone.png cannot be read"),
        (
            "fashion-photos",
            truncate("clothing/coat/0001.jpg"),
            "{}/clothing/coat/0001.jpg cannot be used: it is damaged",
        ),
        (
            "fashion-photos",
            remove("fashion-mnist/train-labels-idx1-ubyte.gz"),
            "idx3-ubyte.gz are missing",
        ),
        ("pacs/art-photo", lambda root: (root / "photo").rename(root / "fotos"), "There is no {}/photo"),
        ("pacs/art-photo", truncate("art_painting/dog/0000.jpg"), "art_painting/dog/0000.jpg cannot be used"),
    ],
)
def test_the_error_names_the_problem_with_a_copy(
    name: str, damage: Any, sentence: str, tree: Callable[[str], Path], tmp_path: Path, crodobo: Crodobo
) -> None:
    folder = tree(name)
    damage(folder)
    whole = ("--queries", "9", "--method", "no-adaptation", "--warmup", "0")
    status, _, errors = crodobo("run", "--preset", name, "--data", folder, "--out", tmp_path / "out", *TINY, *whole)
    assert status == 2
    assert sentence.format(folder) in one_sentence(errors)
    assert not Path(f"{tmp_path}/cache-harm").exists()


def test_a_preset_without_its_folder_is_an_error(crodobo: Crodobo, tmp_path: Path) -> None:
    status, _, errors = crodobo("run", "--preset", "pacs/art-photo", "--out", tmp_path)
    assert status == 2
    assert "The preset needs the folder of its data" in one_sentence(errors)
    status, _, errors = crodobo("run", "--preset", "pacs/art-photo", "--data", tmp_path / "nowhere", "--out", tmp_path)
    assert status == 2
    assert f"There is no {tmp_path}/nowhere/art_painting" in one_sentence(errors)


def test_a_subsample_of_the_source_has_every_class_and_is_the_same_each_time(tree: Callable[[str], Path]) -> None:
    folder = tree("pacs/art-photo")
    drawn = [
        load_benchmark("pacs/art-photo", 16, DataSettings(folder=folder, source_limit=10)).source for _ in range(2)
    ]
    assert Counter(drawn[0].labels.tolist()).total() == 10
    assert set(drawn[0].labels.tolist()) == set(range(7))
    assert torch.equal(drawn[0].labels, drawn[1].labels)
    assert torch.equal(drawn[0].images[torch.arange(10)], drawn[1].images[torch.arange(10)])
