"""The plan of a comparison: the same settings for all, and tasks in a possible order."""

from pathlib import Path

import pytest

from crodobo.errors import BadSettings
from crodobo.evaluate.comparison import Entry, Plan
from crodobo.evaluate.comparison.studies import BURST_METHODS, ORDERS, STUDIES
from crodobo.methods import REGISTRY, get_method
from crodobo.session.warm_start import DECISIVE


def make_plan(*methods: str, **settings: object) -> Plan:
    entries = tuple(Entry(name, name, name) for name in methods)
    given = {"seeds": (0, 1), "options": {"lr": 0.01}, "run": {"query_size": 16, "queries": 3}} | settings
    return Plan(folder=Path("nowhere"), benchmark="glyphs", entries=entries, **given)  # type: ignore[arg-type]


def test_all_methods_run_with_the_same_settings() -> None:
    plan = make_plan(*REGISTRY)
    for seed in plan.seeds:
        settings = [plan.settings(entry, seed) for entry in plan.entries]
        assert len({each.model_dump_json(exclude={"method", "options"}) for each in settings}) == 1
        warming = [each.options.model_dump_json(include=DECISIVE) for each in settings]
        assert len(set(warming)) == 1, "a warm start fits every method"
        shared = {"seed", "lr", "warmup", "order", "threads", "backbone", "weight_decay", "running_weight"}
        assert len({each.options.model_dump_json(include=shared) for each in settings}) == 1
        assert {(each.options.seed, each.order_seed, each.options.threads) for each in settings} == {(seed, seed, 1)}
        assert {each.options.lr for each in settings} == {0.01}


def test_burning_is_off_only_for_methods_that_keep_target_data() -> None:
    plan = make_plan(*REGISTRY)
    off = {entry.key for entry in plan.entries if plan.settings(entry, 0).options.burn == "off"}
    assert off == {"conda", "shot", "atdoc-na", "covid-da"}
    assert off == {name for name, kind in REGISTRY.items() if kind.keeps_target}


def test_settings_of_an_entry_override_the_shared_ones() -> None:
    entry = Entry("steep", "steep", "crodobo", {"lr": 0.1, "tau": 0.5}, {"stream": "drift", "stream_seed": 7})
    settings = Plan(Path("x"), "glyphs", (entry,), (3,), {"lr": 0.01}, {"stream": "random"}).settings(entry, 3)
    assert (settings.options.lr, settings.options.tau, settings.options.seed) == (0.1, 0.5, 3)  # type: ignore[attr-defined]
    assert (settings.stream, settings.order_seed) == ("drift", 7)


def test_each_seed_begins_with_a_warm_up_for_the_largest_number_of_learners() -> None:
    tasks = make_plan("source-only", "crodobo", "ent").tasks
    assert [(task.kind, task.name, task.seed) for task in tasks] == [
        (kind, name, seed)
        for seed in (0, 1)
        for kind, name in (
            ("warm-up", "warm-up"),
            ("online", "crodobo"),
            ("online", "source-only"),
            ("online", "ent"),
        )
    ]
    for task in tasks:
        assert task.warm_start == Path(f"nowhere/warm-starts/seed{task.seed}.safetensors")
        assert task.settings.options.seed == task.seed
    assert [task.settings.options.learners for task in tasks if task.kind == "warm-up"] == [2, 2]
    assert len({task.folder for task in tasks if task.kind != "warm-up"}) == 6


def test_offline_runs_are_planned_on_request_for_methods_with_an_offline_form() -> None:
    methods = ("crodobo", "dan", "shot")
    online = make_plan(*methods, seeds=(0,)).tasks
    assert [(task.kind, task.name) for task in online] == [
        ("warm-up", "warm-up"),
        ("online", "crodobo"),
        ("online", "dan"),
    ]
    both = make_plan(*methods, seeds=(0,), offline=True, epochs=4).tasks
    assert [(task.kind, task.name, task.epochs) for task in both] == [
        ("warm-up", "warm-up", 0),
        ("offline", "dan", 4),
        ("offline", "shot", 4),
        ("online", "crodobo", 0),
        ("online", "dan", 0),
    ]
    assert both[1].title == "dan offline, seed 0"
    assert len({task.title for task in both}) == 5
    assert make_plan("shot").tasks == [], "nothing to run, so nothing to warm up"


@pytest.mark.parametrize("seeds", [(), (0, 0), (1, 2, 1)])
def test_no_seeds_or_repeated_seeds_are_refused(seeds: tuple[int, ...]) -> None:
    with pytest.raises(BadSettings, match="There are no seeds, or one is named twice"):
        make_plan("ent", seeds=seeds)


@pytest.mark.parametrize("methods", [(), ("ent", "ent")])
def test_no_entries_or_repeated_entries_are_refused(methods: tuple[str, ...]) -> None:
    with pytest.raises(BadSettings, match="nothing to compare, or a method is named twice"):
        make_plan(*methods)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_study_can_be_planned(study: object) -> None:
    entries = study.entries  # type: ignore[attr-defined]
    tasks = Plan(Path("nowhere"), "glyphs", entries, (0,)).tasks
    assert sum(task.kind == "online" for task in tasks) == len(entries)
    decided = [task.settings.model_dump_json() for task in tasks if task.kind == "online"]
    assert len(set(decided)) == len(entries), "no two entries are the same run"
    assert all("/" not in entry.key and " " not in entry.key and "(" not in entry.key for entry in entries)
    assert all("online" in get_method(entry.method).protocols for entry in entries)


def test_a_sweep_varies_its_setting_and_nothing_else() -> None:
    for name, setting in (("lambda", "lam"), ("tau", "tau")):
        tasks = [task for task in Plan(Path("x"), "glyphs", STUDIES[name].entries, (0,)).tasks if task.kind == "online"]
        others = {task.settings.options.model_dump_json(exclude={setting}) for task in tasks}
        assert len(others) == 1
        assert {task.name: getattr(task.settings.options, setting) for task in tasks} == {
            task.name: float(task.name) for task in tasks
        }


def test_the_study_of_orders_is_a_full_grid() -> None:
    entries = STUDIES["orders"].entries
    assert len(entries) == len(BURST_METHODS) * len(ORDERS)
    assert {(entry.row, entry.column) for entry in entries} == {
        (row, order) for row in {entry.row for entry in entries} for order in ORDERS
    }
    assert all(entry.stream == {"stream": entry.column} for entry in entries)
