"""Settings are checked when they are made, and say what is wrong in one sentence."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from crodobo.config import DataSettings, LearnerSettings, MethodSettings, Settings, Views
from crodobo.errors import BadSettings
from crodobo.evaluate.settings import RunSettings
from crodobo.inbox.settings import AdaptSettings
from crodobo.serve.settings import AddressSettings, ServeSettings

NAN, INF = float("nan"), float("inf")


class SpecialSettings(MethodSettings):
    tau: float = 0.95


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (LearnerSettings, {"lr": 0}),
        (LearnerSettings, {"lr": -1}),
        (LearnerSettings, {"lr": NAN}),
        (LearnerSettings, {"lr": INF}),
        (LearnerSettings, {"lr": "fast"}),
        (LearnerSettings, {"backbone_lr_scale": -0.1}),
        (LearnerSettings, {"backbone_lr_scale": NAN}),
        (LearnerSettings, {"weight_decay": -1e-9}),
        (LearnerSettings, {"weight_decay": INF}),
        (LearnerSettings, {"norm": "batch"}),
        (LearnerSettings, {"running_weight": 1.01}),
        (LearnerSettings, {"running_weight": -0.01}),
        (LearnerSettings, {"running_weight": NAN}),
        (LearnerSettings, {"warmup": -1}),
        (LearnerSettings, {"warmup": 1.5}),
        (LearnerSettings, {"warmup_batch": 1}),
        (MethodSettings, {"learners": 0}),
        (MethodSettings, {"seed": -1}),
        (MethodSettings, {"seed": 2**31}),
        (MethodSettings, {"order": "predict"}),
        (MethodSettings, {"threads": 0}),
        (RunSettings, {"query_size": 0, "options": MethodSettings()}),
        (RunSettings, {"queries": 0, "options": MethodSettings()}),
        (RunSettings, {"image_size": 7, "options": MethodSettings()}),
        (RunSettings, {"image_size": 1025, "options": MethodSettings()}),
        (RunSettings, {"checkpoint_every": 0, "options": MethodSettings()}),
    ],
    ids=str,
)
def test_a_bad_value_is_named_in_one_sentence(kind: type[Settings], values: dict[str, Any]) -> None:
    name, value = next(iter(values.items()))
    with pytest.raises(BadSettings, match=rf"^{name} cannot be {value}: [a-z].+\.$") as caught:
        kind.of(**values)
    assert "\n" not in str(caught.value)
    assert caught.value.settings == (name,)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (LearnerSettings, {"lr": 1e-9, "backbone_lr_scale": 0, "weight_decay": 0, "warmup": 0, "warmup_batch": 2}),
        (LearnerSettings, {"running_weight": 0}),
        (LearnerSettings, {"running_weight": 1, "norm": "query"}),
        (MethodSettings, {"learners": 1, "seed": 2**31 - 1, "threads": 1, "order": "predict-then-adapt"}),
        (RunSettings, {"query_size": 1, "queries": 1, "image_size": 8, "options": MethodSettings()}),
        (RunSettings, {"image_size": 1024, "options": MethodSettings()}),
    ],
)
def test_values_at_the_edge_are_taken(kind: type[Settings], values: dict[str, Any]) -> None:
    made = kind.of(**values)
    assert {name: getattr(made, name) for name in values} == values


def test_an_unknown_setting_gets_the_known_ones_and_a_typo_the_nearest() -> None:
    with pytest.raises(BadSettings, match=r"There is no setting learning_rate\. The settings are backbone, .*\blr\b"):
        LearnerSettings.of(learning_rate=0.1)
    with pytest.raises(BadSettings, match=r"There is no setting warm_up\. Did you mean warmup\?"):
        LearnerSettings.of(warm_up=1)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(BadSettings, match=r"The setting inbox is missing\.") as caught:
        AdaptSettings.of(data=DataSettings(), predictions="p.csv", options=MethodSettings())
    assert caught.value.settings == ("inbox",)


@pytest.mark.parametrize(
    "model", [MethodSettings, DataSettings, Views, RunSettings, AdaptSettings, ServeSettings, AddressSettings]
)
def test_every_setting_is_described_in_a_sentence(model: type[Settings]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, name
        assert field.description[0].isupper() or field.description.startswith("strict: "), name
        assert field.description.endswith("."), name


def test_paths_that_are_not_set_follow_from_others() -> None:
    places = {"inbox": Path("/in"), "predictions": Path("/out/p.csv"), "data": DataSettings()}
    settings = AdaptSettings.of(**places, options=MethodSettings())
    assert (settings.state, settings.quarantine) == (Path("/out/p.csv.state"), Path("/in/quarantine"))
    assert settings.shuffle
    assert not AdaptSettings.of(**places, watch=True, options=MethodSettings()).shuffle
    assert ServeSettings.of(name="shop", options=MethodSettings()).state == Path("runs/serve-shop").absolute()


def test_columns_may_be_text() -> None:
    assert DataSettings.of(source_columns="file, kind").source_columns == ("file", "kind")
    with pytest.raises(BadSettings, match="source_columns cannot be file: write the image column and the label"):
        DataSettings.of(source_columns="file")


def test_settings_cannot_be_changed() -> None:
    settings = MethodSettings.of(lr=0.1)
    with pytest.raises(ValidationError, match="frozen"):
        settings.lr = 0.2  # type: ignore[misc]
    assert settings.lr == 0.1


def test_the_paper_s_values_are_the_defaults() -> None:
    settings = MethodSettings.of()
    assert (settings.lr, settings.weight_decay, settings.order) == (8e-4, 5e-4, "adapt-then-predict")
    assert RunSettings.of(options=settings).query_size == 64


def test_settings_come_back_from_json() -> None:
    settings = MethodSettings.of(lr=0.1, weights=Path("w.pth"), learners=3, norm="query")
    assert MethodSettings.model_validate_json(settings.model_dump_json()) == settings


def test_a_run_stores_the_settings_that_only_its_method_has() -> None:
    stored = RunSettings.of(options=SpecialSettings.of(tau=0.8)).model_dump()
    assert stored["options"]["tau"] == 0.8
