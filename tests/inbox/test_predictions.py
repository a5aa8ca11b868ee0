"""The file of predictions: whole rows, durable, none ever lost, and other files are left alone."""

import csv
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crodobo.errors import BadData, CrodoboError
from crodobo.inbox.predictions import COLUMNS, PredictionFile
from crodobo.inbox.walk import Arrival

Rows = Callable[[Path], list[dict[str, str]]]
VALUES = ("cat", "0.900000", "3", "2026-01-01T00:00:00+00:00")


def arrival(name: str, modified: int = 10**18) -> Arrival:
    return Arrival(modified, name, 100, device=1, inode=7, changed=5)


def filled(path: Path, *names: str) -> bytes:
    """Create a file with a row for each name, and return its content."""
    predictions = PredictionFile(path)
    predictions.append([(arrival(name), VALUES) for name in names])
    predictions.close()
    return path.read_bytes()


def reopened(path: Path) -> int:
    """Open and close the file, and return its number of rows."""
    predictions = PredictionFile(path)
    predictions.close()
    return predictions.rows


def test_rows_are_appended(tmp_path: Path, rows_of: Rows) -> None:
    path = tmp_path / "deep" / "er" / "p.csv"
    for name in ("a.png", "b.png"):
        filled(path, name)
    rows = rows_of(path)
    assert [row["file"] for row in rows] == ["a.png", "b.png"]
    assert tuple(rows[0]) == COLUMNS
    assert tuple(rows[0].values()) == ("a.png", *VALUES, "100", "1000000000000000000ns", "i7c5")
    assert reopened(path) == 2


def test_the_number_of_the_last_query_is_known(tmp_path: Path) -> None:
    filled(tmp_path / "p.csv", "a.png")
    predictions = PredictionFile(tmp_path / "p.csv")
    assert predictions.queries == 3
    predictions.close()


@given(st.lists(st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name), min_size=1, max_size=4))
def test_any_name_is_found_again(tmp_path_factory: pytest.TempPathFactory, names: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("any") / "p.csv"
    texts = [os.fsdecode(name) for name in names]
    filled(path, *texts)
    predictions = PredictionFile(path)
    assert predictions.already_predicted([arrival(text) for text in texts]) == {arrival(text) for text in texts}
    assert predictions.rows == len(names)
    predictions.close()
    with path.open(newline="", encoding="utf-8") as file:
        cells = [row[0] for row in csv.reader(file, strict=True)][1:]
    assert [unquote_to_bytes(cell) for cell in cells] == names
    assert not any(cell.startswith(tuple("=+-@\t\r")) for cell in cells), "no cell is a formula"


def test_a_row_counts_only_for_the_file_it_was_written_for(tmp_path: Path) -> None:
    filled(tmp_path / "p.csv", "a.png")
    predictions = PredictionFile(tmp_path / "p.csv")
    same = arrival("a.png")
    others = [arrival("a.png", modified=5), arrival("b.png"), replace(same, size=101)]
    assert predictions.already_predicted([same, *others]) == {same}
    for swapped in (replace(same, inode=8), replace(same, changed=6)):
        assert predictions.already_predicted([swapped]) == set()
        assert predictions.already_predicted([swapped], exactly=False) == {swapped}
    assert predictions.already_predicted([]) == set()
    predictions.close()


def test_an_unfinished_last_row_is_cut_off_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    first = filled(path, "a.png")
    whole = filled(path, 'b,"\n"",\r.png')
    for end in range(len(first), len(whole)):
        path.write_bytes(whole[:end])
        assert reopened(path) == 1
        assert path.read_bytes() == first
    path.write_bytes(whole)
    assert reopened(path) == 2


def test_an_unfinished_header_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    assert reopened(path) == 0
    header = path.read_bytes()
    for end in range(len(header)):
        path.write_bytes(header[:end])
        assert reopened(path) == 0
        assert path.read_bytes() == header


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [*lines[:2], b"b.png,cat\n", *lines[3:]],
        lambda lines: [*lines[:2], b'"' + lines[2], *lines[3:]],
        lambda lines: [*lines[:2], lines[2].replace(b"1000000000000000000ns", b"yesterday"), *lines[3:]],
        lambda lines: [*lines[:2], b"\n", *lines[3:]],
        lambda lines: [*lines[:2], b"\x00" * 100, *lines[3:]],
        lambda lines: [*lines, b"a remark of mine\n"],
    ],
    ids=["short", "a quotation mark", "a number", "an empty line", "zeros", "a remark at the end"],
)
def test_a_damaged_row_is_refused_and_the_file_is_unchanged(
    damage: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    path = tmp_path / "p.csv"
    lines = filled(path, *(f"{number}.png" for number in range(5))).splitlines(keepends=True)
    damaged = b"".join(damage(lines))
    path.write_bytes(damaged)
    with pytest.raises(BadData, match=r"Row \d of .* is damaged. Repair it"):
        PredictionFile(path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    "content",
    [b"name,label\na,b\n", b"precious, without an end", b'a "mark\nand more\n', b"\xff\xd8\xff\xe0 no text", b"\n"],
)
def test_a_file_that_is_not_ours_is_refused_and_unchanged(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(content)
    with pytest.raises(BadData, match="Choose another file"):
        PredictionFile(path)
    assert path.read_bytes() == content


def test_other_columns_are_refused(tmp_path: Path) -> None:
    before = filled(tmp_path / "p.csv", "a.png")
    with pytest.raises(BadData, match=r"has the columns file, .*, not file, .*p\(cat\)"):
        PredictionFile(tmp_path / "p.csv", ("p(cat)",))
    assert (tmp_path / "p.csv").read_bytes() == before


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled(tmp_path / "p.csv", "a.png")
    predictions = PredictionFile(tmp_path / "p.csv")
    real, written = os.write, 0

    def full(descriptor: int, content: bytes) -> int:
        nonlocal written
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, content[:20])
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(CrodoboError, match=r"No space left on device.*No image of this query was deleted"):
            predictions.append([(arrival("b.png"), VALUES)])
    assert written == 20
    assert (tmp_path / "p.csv").read_bytes() == before
    predictions.append([(arrival("b.png"), VALUES)])
    predictions.close()
    assert reopened(tmp_path / "p.csv") == 2


def test_rows_that_do_not_reach_the_disk_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled(tmp_path / "p.csv", "a.png")
    predictions = PredictionFile(tmp_path / "p.csv")

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(CrodoboError, match="Input/output error"):
        predictions.append([(arrival("b.png"), VALUES)])
    predictions.close()
    assert (tmp_path / "p.csv").read_bytes() == before


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_of: Rows) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:7]))
    filled(tmp_path / "p.csv", "a.png", "b.png")
    assert [row["file"] for row in rows_of(tmp_path / "p.csv")] == ["a.png", "b.png"]


@pytest.mark.parametrize("replace", [False, True])
def test_no_rows_are_written_to_a_file_that_was_removed(replace: bool, tmp_path: Path) -> None:
    """They would be lost: the file no longer has a name."""
    path = tmp_path / "p.csv"
    predictions = PredictionFile(path)
    path.unlink()
    if replace:
        path.write_bytes(b"")
    with pytest.raises(CrodoboError, match="could not be written"):
        predictions.append([(arrival("a.png"), VALUES)])
    predictions.close()


def test_only_one_process_writes(tmp_path: Path) -> None:
    predictions = PredictionFile(tmp_path / "p.csv")
    with pytest.raises(CrodoboError, match="Another process is writing"):
        PredictionFile(tmp_path / "p.csv")
    predictions.close()
    assert reopened(tmp_path / "p.csv") == 0


def test_an_unwritable_path_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "p.csv"):
        with pytest.raises(BadData, match="Predictions cannot be written to"):
            PredictionFile(path)


def test_only_the_owner_can_read_the_file_also_one_that_others_could_read(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    for _ in range(2):
        filled(path, "a.png")
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o664)


def as_a_spreadsheet_saves_it(content: bytes) -> bytes:
    """With a byte-order mark, CRLF, quoted cells, and numbers as the program shows them."""
    rows = list(csv.reader(content.decode().splitlines()))
    for row in rows[1:]:
        row[2] = f"{float(row[2]):g}"
        row[6] = f"{float(row[6]):.2E}" if row[6].isdigit() else row[6]
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    return b"\xef\xbb\xbf" + "".join(f"{line}\r\n" for line in lines).encode()


def test_a_file_that_a_spreadsheet_has_saved_is_continued(tmp_path: Path, rows_of: Rows) -> None:
    path = tmp_path / "p.csv"
    saved = as_a_spreadsheet_saves_it(filled(path, "a.png", "=b.png", "caf\udce9.png"))
    path.write_bytes(saved)
    predictions = PredictionFile(path)
    found = [arrival(name) for name in ("a.png", "=b.png", "caf\udce9.png")]
    assert predictions.already_predicted(found) == set(found)
    assert (predictions.rows, predictions.rounded, predictions.queries) == (3, 0, 3)
    predictions.append([(arrival("d.png"), VALUES)])
    predictions.close()
    assert path.read_bytes().startswith(saved)
    assert reopened(path) == 4


def test_a_row_with_a_rounded_time_stays_but_tells_no_file(tmp_path: Path) -> None:
    """Any file of this name could be another one, so none is deleted because of it."""
    path = tmp_path / "p.csv"
    content = filled(path, "a.png", "b.png")
    path.write_bytes(content.replace(b"1000000000000000000ns", b"1.00E+18", 1))
    predictions = PredictionFile(path)
    assert predictions.already_predicted([arrival("a.png"), arrival("b.png")]) == {arrival("b.png")}
    assert (predictions.rows, predictions.rounded) == (2, 1)
    predictions.close()


@pytest.mark.parametrize("mark", [b";", b"\t"])
def test_a_file_saved_without_commas_is_refused_with_the_reason(mark: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(filled(path, "a.png").replace(b",", mark))
    with pytest.raises(BadData, match="Save it with commas"):
        PredictionFile(path)
