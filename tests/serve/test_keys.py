"""API keys: only hashes are stored, changes apply at once, and a file without keys lets nobody in."""

import hashlib
import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crodobo.errors import BadData
from crodobo.serve.keys import Caller, Keys, Limits, add_key

Crodobo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def add(crodobo: Crodobo, file: Path) -> Callable[..., str]:
    def call(*arguments: str) -> str:
        status, out, errors = crodobo("keys", "add", file, *arguments)
        assert status == 0, errors
        assert "shown only once" in errors
        return out.strip()

    return call


def found(keys: Keys, key: str) -> Caller | None:
    """The owner of a key, without the fingerprint."""
    caller = keys.find(key)
    return caller and caller._replace(fingerprint="")


def test_a_key_is_printed_once_and_only_its_hash_is_stored(file: Path, add: Callable[..., str]) -> None:
    key = add("shop")
    assert len(key) > 40
    assert key not in file.read_text(encoding="utf-8")
    assert hashlib.sha256(key.encode()).hexdigest() in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_list_shows_names_and_roles_but_no_keys(crodobo: Crodobo, file: Path, add: Callable[..., str]) -> None:
    add("shop")
    add("operator", "--admin")
    assert crodobo("keys", "list", file) == (0, "shop\tclient\noperator\tadmin\n", "")


def test_limits_are_stored_with_a_key_listed_and_changed_without_a_new_key(
    crodobo: Crodobo, file: Path, add: Callable[..., str]
) -> None:
    key = add("shop", "--no-adapt")
    add("ward", "--adapt-share", "0.25", "--adapt-rate", "10")
    listed = "shop\tclient\tno-adapt\nward\tclient\tadapt-share 0.25\tadapt-rate 10\n"
    assert crodobo("keys", "list", file) == (0, listed, "")
    keys = Keys(file)
    assert found(keys, key) == Caller("shop", "client", Limits(adapt=False))
    assert crodobo("keys", "limit", file, "shop", "--adapt-rate", "3") == (0, "", "")
    assert found(keys, key) == Caller("shop", "client", Limits(rate=3))
    assert crodobo("keys", "limit", file, "shop") == (0, "", "")
    assert found(keys, key) == Caller("shop", "client")


def test_a_file_from_before_there_were_limits_is_read_and_stays_readable_for_that_version(
    file: Path, add: Callable[..., str]
) -> None:
    add("shop")
    assert [set(entry) for entry in json.loads(file.read_text(encoding="utf-8"))] == [{"name", "role", "sha256"}]
    file.write_text(json.dumps([{"name": "old", "role": "client", "sha256": hashlib.sha256(b"key").hexdigest()}]))
    assert found(Keys(file), "key") == Caller("old", "client", Limits())


def test_a_change_of_the_file_applies_at_once(crodobo: Crodobo, file: Path, add: Callable[..., str]) -> None:
    first = add("first")
    keys = Keys(file)
    second = add("second")
    assert keys.find(second)
    assert crodobo("keys", "remove", file, "first")[0] == 0
    assert keys.find(first) is None
    assert keys.find(second)


def test_a_reload_reads_the_file_even_if_it_looks_unchanged(file: Path, add: Callable[..., str]) -> None:
    key = add("shop")
    keys, before = Keys(file), file.stat()
    file.write_text(file.read_text().replace("shop", "ward"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert found(keys, key) == Caller("shop", "client")
    keys.reload()
    assert found(keys, key) == Caller("ward", "client")


def test_a_file_without_keys_lets_nobody_in_and_a_key_can_be_added(
    crodobo: Crodobo, file: Path, add: Callable[..., str]
) -> None:
    key = add("shop")
    keys = Keys(file)
    assert crodobo("keys", "remove", file, "shop")[0] == 0
    assert keys.find(key) is None
    with pytest.raises(BadData, match="holds no keys"):
        Keys(file)
    assert keys.find(add("shop"))


def test_a_damaged_file_leaves_the_keys_valid(file: Path, add: Callable[..., str]) -> None:
    key = add("shop")
    keys = Keys(file)
    file.write_text("[{", encoding="utf-8")
    assert keys.find(key)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", "FILE", "shop"), "already has a key called shop"),
        (("add", "FILE", "two words"), "is not a valid name for a key"),
        (("remove", "FILE", "nobody"), "has no key called nobody. It has shop."),
        (("list", "elsewhere.json"), "cannot be read"),
        (("limit", "FILE", "nobody", "--no-adapt"), "has no key called nobody. It has shop."),
        (("add", "FILE", "ward", "--adapt-share", "0"), "must be above 0 and at most 1, not 0."),
        (("add", "FILE", "ward", "--adapt-rate", "0"), "must be at least 1, not 0."),
        (("limit", "FILE", "shop", "--no-adapt", "--adapt-rate", "1"), "has no other limits. Choose one"),
        (("add", "no/such/folder.json", "shop"), "cannot be written"),
    ],
)
def test_invalid_arguments_give_one_line(
    arguments: tuple[str, ...], sentence: str, crodobo: Crodobo, file: Path, add: Callable[..., str]
) -> None:
    add("shop")
    status, out, errors = crodobo("keys", *[str(file) if word == "FILE" else word for word in arguments])
    assert (status, out) == (2, "")
    assert sentence in errors
    assert errors.count("\n") == 1


def test_keys_added_at_the_same_time_are_all_stored(tmp_path: Path) -> None:
    names = [f"client{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as together:
        made = list(together.map(lambda name: add_key(tmp_path / "keys.json", name, "client"), names))
    keys = Keys(tmp_path / "keys.json")
    assert [found(keys, key) for key in made] == [Caller(name, "client") for name in names]
    assert (tmp_path / "keys.json").stat().st_mode & 0o077 == 0


def test_a_damaged_file_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = add_key(tmp_path / "keys.json", "shop", "client")
    keys = Keys(tmp_path / "keys.json")
    (tmp_path / "keys.json").write_text("[{")
    for _ in range(3):
        assert keys.find(key)
    assert capsys.readouterr().err.count("the old keys stay valid") == 1
