"""`crodobo audit` as a person meets it: what it says, and its status."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crodobo.ledger.ledger import Ledger

Crodobo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.begin({"seed": 0})
        for _ in range(3):
            ledger.burned(samples=8, wiped=4096)
    return path


def section(out: str, title: str) -> list[str]:
    """The sentences under a title."""
    lines = out.splitlines()
    start = lines.index(f"{title}:") + 1
    texts = []
    for line in lines[start:]:
        if not line.startswith("  "):
            break
        texts.append(line.strip())
    return texts


def test_a_sound_ledger(ledger: Path, crodobo: Crodobo) -> None:
    status, out, errors = crodobo("audit", "ledger", ledger)
    assert (status, errors) == (0, "")
    assert section(out, "checked") == [
        f"5 lines of {ledger}: format, hash, number, and the hash of the line before.",
        "3 receipts: 24 samples, 12288 bytes overwritten, 0 scans.",
    ]
    assert section(out, "found") == ["nothing"]
    unseen = " ".join(section(out, "cannot see"))
    assert "last hash" in unseen
    assert "Memory" in unseen


def test_a_damaged_line_is_named_with_status_1(ledger: Path, crodobo: Crodobo) -> None:
    ledger.write_bytes(ledger.read_bytes().replace(b'"query":2', b'"query":7'))
    status, out, errors = crodobo("audit", "ledger", ledger)
    assert (status, errors) == (1, "")
    assert section(out, "found") == ["Line 3 was edited: its hash does not match its content."]


def test_expect_head_compares_the_last_hash(ledger: Path, crodobo: Crodobo) -> None:
    _, out, _ = crodobo("audit", "ledger", ledger)
    (head,) = [text.rpartition(" ")[2] for text in section(out, "noted") if "The last hash, to keep" in text]
    assert crodobo("audit", "ledger", ledger, "--expect-head", head)[0] == 0
    assert crodobo("audit", "ledger", ledger, "--expect-head", "0" * 64)[0] == 1
    status, _, errors = crodobo("audit", "ledger", ledger, "--expect-head", "magic")
    assert status == 2
    assert errors == "error: magic is not a hash. A hash has 64 hexadecimal digits. (see --expect-head)\n"


def test_an_unclosed_ledger_needs_the_option_unclosed(ledger: Path, crodobo: Crodobo) -> None:
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    status, out, _ = crodobo("audit", "ledger", ledger)
    assert status == 1
    assert "ends without a closing line" in section(out, "found")[0]
    assert section(out, "found")[0].endswith("(see --unclosed)")
    assert crodobo("audit", "ledger", ledger, "--unclosed")[0] == 0


def test_keygen_makes_a_key_pair_that_checks_signatures(tmp_path: Path, ledger: Path, crodobo: Crodobo) -> None:
    from crodobo.ledger.signing import load_signing_key

    key, signed = tmp_path / "key", tmp_path / "signed.jsonl"
    status, out, _ = crodobo("audit", "keygen", key)
    assert status == 0
    assert out == f"private key (keep it secret): {key}\npublic key: {key}.pub\n"
    with Ledger(signed, load_signing_key(key)) as writer:
        writer.begin({})
    status, out, _ = crodobo("audit", "ledger", signed, "--public-key", f"{key}.pub")
    assert status == 0
    assert "2 signatures, with the given key." in section(out, "checked")
    _, out, _ = crodobo("audit", "ledger", signed)
    assert "Whose key the header names" in " ".join(section(out, "cannot see"))
    assert crodobo("audit", "ledger", ledger, "--public-key", f"{key}.pub")[0] == 1
    status, _, errors = crodobo("audit", "keygen", key)
    assert (status, errors) == (2, f"error: {key} exists already and is not replaced. Choose another name.\n")


def test_disk_searches_a_folder(tmp_path: Path, crodobo: Crodobo) -> None:
    image, folder = tmp_path / "secret.png", tmp_path / "run"
    folder.mkdir()
    values = np.random.default_rng(0).integers(0, 256, (20, 20), dtype=np.uint8)
    Image.fromarray(values).save(image)
    (folder / "log.txt").write_text("all is well\n")
    command = ("audit", "disk", folder, "--pattern", image, "--image-size", "16", "--image-size", "20")
    status, out, errors = crodobo(*command)
    assert (status, errors) == (0, "")
    assert section(out, "found") == ["nothing"]
    assert "pixels at 16×16" in section(out, "checked")[1]
    assert len(section(out, "cannot see")) == 4
    (folder / "leak").write_bytes(values.tobytes())
    status, out, _ = crodobo(*command, "--fit", "squash")
    assert status == 1
    assert section(out, "found")[0].startswith(f"{folder / 'leak'}: pixels at 20×20, ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ledger", "nowhere"], "The ledger nowhere is not readable"),
        (["ledger"], "Missing argument"),
        (["ledger", "{ledger}", "--public-key", "nowhere"], "The key nowhere is not readable"),
        (["magic"], "No such command"),
        (["disk", "."], "Missing option '--pattern'"),
        (["disk", "nowhere", "--pattern", "{ledger}"], "There is no folder nowhere"),
        (["disk", ".", "--pattern", "nowhere"], "There is no file or folder nowhere to search for"),
        (["disk", ".", "--pattern", "x", "--fit", "magic"], "'magic' is not one of"),
        (["keygen", "/dev/null/key"], "is not writable"),
    ],
)
def test_wrong_arguments_give_one_sentence_with_status_2(
    arguments: list[str], sentence: str, ledger: Path, crodobo: Crodobo
) -> None:
    status, _, errors = crodobo("audit", *(each.format(ledger=ledger) for each in arguments))
    assert status == 2
    assert sentence in " ".join(errors.split())
    assert "Traceback" not in errors
