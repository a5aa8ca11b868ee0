"""Keys at rest and at work: hashes alone in a file of one's own, changes seen at once, none left means nobody."""

import hashlib
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crodobo.errors import BadData
from crodobo.serve.keys import Caller, Keys, add_key

Crodobo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def add(crodobo: Crodobo, file: Path) -> Callable[..., str]:
    def call(*arguments: str) -> str:
        status, out, errors = crodobo("keys", "add", file, *arguments)
        assert status == 0, errors
        assert "shown this once" in errors
        return out.strip()

    return call


def test_a_key_is_printed_once_and_only_its_hash_is_kept(file: Path, add: Callable[..., str]) -> None:
    key = add("shop")
    assert len(key) > 40
    assert key not in file.read_text(encoding="utf-8")
    assert hashlib.sha256(key.encode()).hexdigest() in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_list_has_names_and_roles_and_nothing_of_a_key(
    crodobo: Crodobo, file: Path, add: Callable[..., str]
) -> None:
    add("shop")
    add("operator", "--admin")
    assert crodobo("keys", "list", file) == (0, "shop\tclient\noperator\tadmin\n", "")


def test_a_change_of_the_file_is_seen_at_the_next_look(crodobo: Crodobo, file: Path, add: Callable[..., str]) -> None:
    first = add("first")
    keys = Keys(file)
    second = add("second")
    assert keys.find(second)
    assert crodobo("keys", "remove", file, "first")[0] == 0
    assert keys.find(first) is None
    assert keys.find(second)


def test_taking_the_last_key_away_lets_nobody_in_and_another_can_be_made(
    crodobo: Crodobo, file: Path, add: Callable[..., str]
) -> None:
    key = add("shop")
    keys = Keys(file)
    assert crodobo("keys", "remove", file, "shop")[0] == 0
    assert keys.find(key) is None
    with pytest.raises(BadData, match="holds no key"):
        Keys(file)
    assert keys.find(add("shop"))


def test_a_file_that_is_damaged_while_it_is_used_leaves_the_keys_as_they_are(
    file: Path, add: Callable[..., str]
) -> None:
    key = add("shop")
    keys = Keys(file)
    file.write_text("[{", encoding="utf-8")
    assert keys.find(key)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", "FILE", "shop"), "has a key called shop already"),
        (("add", "FILE", "two words"), "a key's name has letters"),
        (("remove", "FILE", "nobody"), "has no key called nobody; it has shop"),
        (("list", "elsewhere.json"), "cannot be read"),
        (("add", "no/such/folder.json", "shop"), "cannot be written"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    arguments: tuple[str, ...], sentence: str, crodobo: Crodobo, file: Path, add: Callable[..., str]
) -> None:
    add("shop")
    status, out, errors = crodobo("keys", *[str(file) if word == "FILE" else word for word in arguments])
    assert (status, out) == (2, "")
    assert sentence in errors
    assert errors.count("\n") == 1


def test_of_keys_that_are_made_at_once_none_is_lost(tmp_path: Path) -> None:
    names = [f"client{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as together:
        made = list(together.map(lambda name: add_key(tmp_path / "keys.json", name, "client"), names))
    keys = Keys(tmp_path / "keys.json")
    assert [keys.find(key) for key in made] == [Caller(name, "client") for name in names]
    assert (tmp_path / "keys.json").stat().st_mode & 0o077 == 0


def test_a_keys_file_that_is_damaged_leaves_the_keys_as_they_were_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = add_key(tmp_path / "keys.json", "shop", "client")
    keys = Keys(tmp_path / "keys.json")
    (tmp_path / "keys.json").write_text("[{")
    for _ in range(3):
        assert keys.find(key)
    assert capsys.readouterr().err.count("the keys are as they were") == 1
