"""Downloads that go wrong on the way, against a hub on the loopback interface."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from tests.weights.fake_hub import FakeHub, Fault, Repo
from vivace.errors import DownloadError
from vivace.weights import partfile
from vivace.weights.cache import ModelFiles
from vivace.weights.catalog import resolve
from vivace.weights.download import Retry
from vivace.weights.progress import Silent

DATA = bytes(range(256)) * 4096  # 1 MiB
FILE = "weights.gguf"


@pytest.fixture(autouse=True)
def _tiny(hub: FakeHub) -> None:
    hub.repos["org/tiny"] = Repo({FILE: DATA})


class Waits(list[float]):
    """Takes the place of time.sleep, so that no test waits."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def fetch(cache: Path, waits: Waits | None = None, progress: Silent | None = None) -> ModelFiles:
    return resolve(
        "org/tiny", cache_dir=cache, retry=Retry(sleep=Waits() if waits is None else waits), progress=progress
    )


def ranges(hub: FakeHub) -> list[str]:
    return [seen.range for seen in hub.asked(FILE)]


def parts(cache: Path) -> list[Path]:
    return list(cache.rglob("*.part"))


def test_a_whole_download_is_verified_recorded_and_found_again_without_the_network(
    hub: FakeHub, tmp_path: Path
) -> None:
    files = fetch(tmp_path)
    assert files.path.read_bytes() == DATA
    assert files.digest == hashlib.sha256(DATA).hexdigest()
    assert (files.licence, files.origin) == ("mit", "hub org/tiny@0123456789ab")
    count = len(hub.seen)
    assert fetch(tmp_path) == files
    assert len(hub.seen) == count
    assert not parts(tmp_path)


def test_a_cut_connection_is_resumed_where_it_stopped(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next(FILE, Fault(cut_after=1000), Fault(cut_after=500))
    waits = Waits()
    assert fetch(tmp_path, waits).path.read_bytes() == DATA
    assert ranges(hub) == ["", "bytes=1000-", "bytes=1500-"]
    assert waits == [0.5, 1.0]


def test_a_connection_that_is_always_cut_gives_up_and_the_next_run_goes_on(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next(FILE, *[Fault(cut_after=100)] * 5)
    with pytest.raises(DownloadError, match=r"gave up after 5 tries.*500 B of 1.0 MB") as caught:
        fetch(tmp_path)
    assert "goes on from here" in caught.value.hint
    assert fetch(tmp_path).path.read_bytes() == DATA
    assert ranges(hub)[-1] == "bytes=500-"


def test_progress_starts_the_count_of_failures_anew(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next(FILE, *[Fault(cut_after=1000)] * 20)
    retry = Retry(tries=2, progress_bytes=1000, sleep=Waits())
    assert resolve("org/tiny", cache_dir=tmp_path, retry=retry).path.read_bytes() == DATA


def test_a_server_that_ignores_the_range_starts_the_file_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next(FILE, Fault(cut_after=1000), Fault(ignore_range=True))
    assert fetch(tmp_path).path.read_bytes() == DATA
    assert ranges(hub) == ["", "bytes=1000-"]


def test_a_part_of_another_version_is_not_continued(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next(FILE, Fault(cut_after=1000, etag='"old"', body=b"x" * len(DATA)))
    assert fetch(tmp_path).path.read_bytes() == DATA


def test_a_range_of_another_version_is_refused_even_if_the_server_ignores_if_range(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.break_next(FILE, Fault(cut_after=1000, etag='"old"', body=b"x" * len(DATA)), Fault(wrong_range=True))
    assert fetch(tmp_path).path.read_bytes() == DATA
    assert ranges(hub) == ["", "bytes=1000-", ""]


@pytest.mark.parametrize("etag", ['W/"weak"', "unquoted"])
def test_a_part_without_a_strong_etag_is_not_continued(hub: FakeHub, tmp_path: Path, etag: str) -> None:
    hub.break_next(FILE, Fault(cut_after=1000, etag=etag))
    assert fetch(tmp_path).path.read_bytes() == DATA
    assert ranges(hub) == ["", ""]


def test_wrong_content_names_both_digests_and_removes_the_file(hub: FakeHub, tmp_path: Path) -> None:
    bad = bytes(len(DATA))
    hub.break_next(FILE, Fault(body=bad))
    with pytest.raises(DownloadError) as caught:
        fetch(tmp_path)
    assert caught.value.reason == "digest"
    assert hashlib.sha256(bad).hexdigest() in caught.value.message
    assert hashlib.sha256(DATA).hexdigest() in caught.value.message
    assert not parts(tmp_path)
    assert not list(tmp_path.rglob(FILE))


@pytest.mark.parametrize("length", [len(DATA) - 1, len(DATA) + 1, 10 * len(DATA)])
def test_a_body_of_another_length_than_listed_is_refused_before_it_is_read(
    hub: FakeHub, tmp_path: Path, length: int
) -> None:
    hub.break_next(FILE, Fault(body=bytes(length)))
    with pytest.raises(DownloadError, match=f"offers {length} bytes, expected {len(DATA)}"):
        fetch(tmp_path)
    assert not parts(tmp_path)


def test_a_body_without_a_stated_length_is_bounded_by_the_listed_one(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next(FILE, Fault(body=bytes(10 * len(DATA)), no_length=True))
    with pytest.raises(DownloadError, match=f"more than the stated {len(DATA)} bytes|wrong content"):
        fetch(tmp_path)
    assert not parts(tmp_path)
    hub.break_next(FILE, Fault(no_length=True))
    assert fetch(tmp_path).path.read_bytes() == DATA


def test_a_busy_server_is_asked_again_after_the_time_it_names(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next(FILE, Fault(status=503, headers={"Retry-After": "7"}), Fault(status=429))
    waits = Waits()
    assert fetch(tmp_path, waits).path.read_bytes() == DATA
    assert waits == [7.0, 1.0]


def test_a_full_disk_is_seen_before_the_download(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    with pytest.raises(DownloadError, match=r"disk is full: \d+ bytes.* 1000 bytes .*are free in ") as caught:
        fetch(tmp_path)
    assert caught.value.reason == "disk"
    assert str(tmp_path) in caught.value.message
    assert not hub.asked(FILE)


def test_a_disk_that_fills_up_on_the_way_keeps_what_came(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def failing(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_size >= 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:600])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing)
        with pytest.raises(DownloadError, match="disk is full") as caught:
            fetch(tmp_path)
    assert caught.value.reason == "disk"
    assert parts(tmp_path)[0].stat().st_size == 1200
    assert fetch(tmp_path).path.read_bytes() == DATA
    assert ranges(hub)[-1] == "bytes=1200-"


def test_an_interrupted_download_leaves_a_part_that_the_next_run_resumes(hub: FakeHub, tmp_path: Path) -> None:
    class Interrupting(Silent):
        def update(self, done_bytes: int) -> None:
            if done_bytes >= 1000:
                raise KeyboardInterrupt

    hub.break_next(FILE, Fault(cut_after=1000))
    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path, progress=Interrupting())
    assert parts(tmp_path)[0].stat().st_size == 1000
    assert fetch(tmp_path).path.read_bytes() == DATA
    assert ranges(hub) == ["", "bytes=1000-"]


def test_a_damaged_part_is_found_by_its_digest(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next(FILE, *[Fault(cut_after=100)] * 5)
    with pytest.raises(DownloadError, match="gave up"):
        fetch(tmp_path)
    parts(tmp_path)[0].write_bytes(b"!" * 500)
    with pytest.raises(DownloadError, match="wrong content"):
        fetch(tmp_path)
    assert fetch(tmp_path).path.read_bytes() == DATA


def test_a_damaged_cached_file_is_fetched_again_on_refresh(hub: FakeHub, tmp_path: Path) -> None:
    path = fetch(tmp_path).path
    path.write_bytes(bytes(len(DATA)))
    assert resolve("org/tiny", cache_dir=tmp_path, refresh=True).path.read_bytes() == DATA


def test_a_truncated_cached_file_is_never_used(hub: FakeHub, tmp_path: Path) -> None:
    fetch(tmp_path).path.write_bytes(DATA[:100])
    assert fetch(tmp_path).path.read_bytes() == DATA


CHILD = """
import sys
from pathlib import Path
from vivace.weights.catalog import resolve
from vivace.weights.progress import Silent

class Spoken(Silent):
    def note(self, text):
        print("note:", text, flush=True)

print("path:", resolve("org/tiny", cache_dir=Path(sys.argv[1]), progress=Spoken()).path, flush=True)
"""


def start_child(cache: Path) -> subprocess.Popen[str]:
    source = Path(partfile.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def lines_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if word in line)


def test_two_processes_download_once(hub: FakeHub, tmp_path: Path) -> None:
    asked, go_on = threading.Event(), threading.Event()
    hub.break_next(FILE, Fault(before=lambda: (asked.set(), go_on.wait(60))))
    with start_child(tmp_path) as first:
        assert asked.wait(60)
        with start_child(tmp_path) as second:
            assert "waiting" in lines_until(second, "another process")
            go_on.set()
            paths = {lines_until(process, "path:").strip() for process in (first, second)}
            second.communicate()
        first.communicate()
    assert len(paths) == 1
    assert Path(paths.pop().removeprefix("path: ")).read_bytes() == DATA
    assert len(hub.asked(FILE)) == 1


def test_a_killed_process_neither_blocks_nor_spoils_the_next(hub: FakeHub, tmp_path: Path) -> None:
    asked, go_on = threading.Event(), threading.Event()
    hub.break_next(FILE, Fault(cut_after=1000), Fault(before=lambda: (asked.set(), go_on.wait(60))))
    with start_child(tmp_path) as child:
        assert asked.wait(60)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    go_on.set()
    assert fetch(tmp_path).path.read_bytes() == DATA
    assert ranges(hub)[-1] == "bytes=1000-"


def test_ctrl_c_ends_the_process_and_the_next_run_resumes(hub: FakeHub, tmp_path: Path) -> None:
    asked, go_on = threading.Event(), threading.Event()
    hub.break_next(FILE, Fault(cut_after=1000), Fault(before=lambda: (asked.set(), go_on.wait(60))))
    with start_child(tmp_path) as child:
        assert asked.wait(60)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate()
        assert "KeyboardInterrupt" in stderr
    go_on.set()
    assert fetch(tmp_path).path.read_bytes() == DATA
    assert ranges(hub)[-1] == "bytes=1000-"
