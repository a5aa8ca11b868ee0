"""Only one process at a time holds a lock, and the lock file stays."""

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from crodobo.errors import CrodoboError
from crodobo.storage.lock import LOCK_FILE, locked_file, locked_folder, try_lock


def start(code: str, path: Path) -> subprocess.Popen[str]:
    """Run code in another process."""
    header = "import sys\nfrom pathlib import Path\nfrom crodobo.storage.lock import locked_file, locked_folder\n"
    command = [sys.executable, "-c", f"{header}path = Path(sys.argv[1])\n{code}", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_second_process_is_refused_until_the_first_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    enter = "with locked_folder(path): print('entered')"
    with locked_folder(folder):
        out, errors = start(enter, folder).communicate()
        assert f"Another process is writing to {folder}." in errors
        assert out == ""
    assert start(enter, folder).communicate()[0] == "entered\n"


def test_a_second_holder_in_the_same_process_is_refused_with_the_setting(tmp_path: Path) -> None:
    with locked_folder(tmp_path), pytest.raises(CrodoboError) as refusal, locked_folder(tmp_path, settings=("out",)):
        pass
    assert refusal.value.settings == ("out",)


def test_the_lock_file_stays_and_a_killed_process_releases_it(tmp_path: Path) -> None:
    killed = start("import os, signal\nwith locked_folder(path): os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    killed.communicate()
    assert killed.returncode == -9
    before = (tmp_path / LOCK_FILE).stat().st_ino
    with locked_folder(tmp_path):
        pass
    assert (tmp_path / LOCK_FILE).stat().st_ino == before


def test_a_private_folder_is_created_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "private"
    with locked_folder(folder, private=True):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / LOCK_FILE).stat().st_mode) == 0o600


def test_an_existing_private_folder_is_closed_to_others_unless_it_is_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    with locked_folder(tmp_path, private=True):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    tmp_path.chmod(0o1777)
    refused = pytest.raises(CrodoboError, match="cannot be closed to other users")
    with refused, locked_folder(tmp_path, private=True):
        pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_a_folder_that_cannot_be_created_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CrodoboError, match=r"is not writable \(.*\)\. Choose another one\."):
        locked_folder(tmp_path / "file" / "folder").__enter__()


def test_a_lock_file_makes_the_next_process_wait(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked_file(path):
        waiting = start("print('waiting', flush=True)\nwith locked_file(path): print('entered')", path)
        assert waiting.stdout
        assert waiting.stdout.readline() == "waiting\n"
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
    assert waiting.communicate()[0] == "entered\n"
    assert path.exists()


def test_shared_locks_exclude_only_exclusive_ones(tmp_path: Path) -> None:
    descriptors = [os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    try:
        assert try_lock(descriptors[0], shared=True)
        assert try_lock(descriptors[1], shared=True)
        assert not try_lock(descriptors[2])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_file_systems_without_locks_count_as_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked_folder(tmp_path), locked_file(tmp_path / "lock"):
        pass
