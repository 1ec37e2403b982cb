"""Names, listings and refusals of the hub, against one on the loopback interface."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.weights.fake_hub import FakeHub, Fault, Repo
from vivace.errors import DownloadError, UnsupportedModel
from vivace.weights.cache import ModelFiles
from vivace.weights.catalog import resolve
from vivace.weights.download import Retry
from vivace.weights.hub import HubName, parse_hub_name

FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b'{"pooling": 1}',
    "model.safetensors": b"weights",
}


@pytest.fixture(autouse=True)
def _folder(hub: FakeHub) -> None:
    hub.repos["org/folder"] = Repo({**FOLDER, "README.md": b"#", "pytorch_model.bin": b"pickle", "onnx/m.onnx": b"o"})


def fetch(name: str, cache: Path, *, refresh: bool = False) -> ModelFiles:
    return resolve(name, cache_dir=cache, refresh=refresh, retry=Retry(tries=2, sleep=lambda seconds: None))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", HubName("org/name", "main", "")),
        ("org/name@v1.0", HubName("org/name", "v1.0", "")),
        ("org/name@refs/pr/1:a-Q8_0.gguf", HubName("org/name", "refs/pr/1", "a-Q8_0.gguf")),
        ("org/name:Q4_K_M", HubName("org/name", "main", "Q4_K_M")),
        ("name", None),
        ("a/b/c", None),
        ("../name", None),
        ("org/..", None),
        ("org/na me", None),
        ("org/name@", None),
        ("org/name@../../x", None),
        ("-org/name", None),
        ("org--x/name", None),
        ("o" * 97 + "/name", None),
    ],
)
def test_hub_names_are_read_or_refused(text: str, name: HubName | None) -> None:
    assert parse_hub_name(text) == name


def test_only_what_a_model_folder_needs_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    files = fetch("org/folder", tmp_path)
    assert contents(files.path) == FOLDER
    assert files.kind == "generate"


def test_a_small_file_with_wrong_content_is_refused_by_its_git_name(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next("config.json", Fault(body=b'{"model_type": "other"}'))
    with pytest.raises(DownloadError, match="git object is"):
        fetch("org/folder", tmp_path)
    assert contents(fetch("org/folder", tmp_path).path) == FOLDER


def test_an_interrupted_folder_fetches_only_the_rest(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_next("tokenizer.json", Fault(status=503), Fault(status=503))
    with pytest.raises(DownloadError, match="gave up"):
        fetch("org/folder", tmp_path)
    assert contents(fetch("org/folder", tmp_path).path) == FOLDER
    assert len(hub.asked("model.safetensors")) == 1


def test_a_moved_branch_is_fetched_on_refresh_only(hub: FakeHub, tmp_path: Path) -> None:
    old = fetch("org/folder", tmp_path)
    hub.repos["org/folder"] = Repo({**FOLDER, "model.safetensors": b"newer"}, commit="f" * 40)
    assert fetch("org/folder", tmp_path) == old
    new = fetch("org/folder", tmp_path, refresh=True)
    assert (new.path / "model.safetensors").read_bytes() == b"newer"
    assert fetch("org/folder", tmp_path) == new
    assert fetch("org/folder", tmp_path, refresh=True) == new


def test_the_files_are_asked_for_at_the_listed_commit(hub: FakeHub, tmp_path: Path) -> None:
    fetch("org/folder", tmp_path)
    commit = hub.repos["org/folder"].commit
    assert all(f"/resolve/{commit}/" in seen.path for seen in hub.asked("model.safetensors"))


@pytest.mark.parametrize(
    ("asked", "files", "taken"),
    [
        ("org/g", ["only.gguf"], "only.gguf"),
        ("org/g", ["m-Q8_0.gguf", "m-q4_k_m.gguf", "m-Q2_K.gguf"], "m-q4_k_m.gguf"),
        ("org/g:q8_0", ["m-Q8_0.gguf", "m-Q4_K_M.gguf"], "m-Q8_0.gguf"),
        ("org/g:m-Q2_K.gguf", ["m-Q8_0.gguf", "m-Q2_K.gguf"], "m-Q2_K.gguf"),
        ("org/g:Q8_0", ["m-Q8_0.gguf", "model.safetensors"], "m-Q8_0.gguf"),
    ],
)
def test_a_gguf_repository_gives_one_file(
    hub: FakeHub, tmp_path: Path, asked: str, files: list[str], taken: str
) -> None:
    hub.repos["org/g"] = Repo({name: name.encode() for name in files})
    path = fetch(asked, tmp_path).path
    assert (path.name, path.read_bytes()) == (taken, taken.encode())


def test_several_gguf_files_without_a_usual_one_are_listed(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/g"] = Repo({"a.gguf": b"a", "b.gguf": b"b"})
    with pytest.raises(DownloadError, match=r"2 GGUF files: a.gguf \(1 B\), b.gguf") as caught:
        fetch("org/g", tmp_path)
    assert "org/g:a.gguf" in caught.value.hint


def test_a_file_that_is_not_there_gives_the_nearest(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/g"] = Repo({"m-Q8_0.gguf": b"a", "m-Q4_0.gguf": b"b"})
    with pytest.raises(DownloadError, match=r"no GGUF file for 'm-Q8_1.gguf'") as caught:
        fetch("org/g:m-Q8_1.gguf", tmp_path)
    assert "m-Q8_0.gguf" in caught.value.hint


def test_a_split_gguf_and_a_pickle_only_repository_are_unsupported(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/split"] = Repo({"m-00001-of-00002.gguf": b"a"})
    hub.repos["org/pickle"] = Repo({"pytorch_model.bin": b"a", "config.json": b"{}"})
    with pytest.raises(UnsupportedModel, match="one piece of a split"):
        fetch("org/split", tmp_path)
    with pytest.raises(UnsupportedModel, match=r"only pickles \(pytorch_model.bin\)"):
        fetch("org/pickle", tmp_path)


def test_a_gated_repository_says_to_accept_the_licence_and_set_a_token(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/folder"].token = "secret"
    with pytest.raises(DownloadError, match="org/folder is gated: the hub answered 401") as caught:
        fetch("org/folder", tmp_path)
    assert caught.value.reason == "gated"
    assert f"{hub.url}/org/folder" in caught.value.hint
    assert "HF_TOKEN" in caught.value.hint


def test_a_token_without_access_is_told_apart(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["org/folder"].token = "secret"
    monkeypatch.setenv("HF_TOKEN", "other")
    with pytest.raises(DownloadError, match="gated: the hub answered 403") as caught:
        fetch("org/folder", tmp_path)
    assert "the account of your token" in caught.value.hint


def test_a_token_opens_a_gated_repository(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["org/folder"].token = "secret"
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert contents(fetch("org/folder", tmp_path).path) == FOLDER


def test_an_unknown_repository_gives_the_nearest_name(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="the hub has no repository org/foldr") as caught:
        fetch("org/foldr", tmp_path)
    assert caught.value.reason == "missing"
    assert caught.value.hint == "did you mean 'org/folder'?"


def test_an_unknown_revision_is_named(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="has no revision 'v9'"):
        fetch("org/folder@v9", tmp_path)


def test_a_listed_file_that_is_gone_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["org/folder"].listed = FOLDER
    del hub.repos["org/folder"].files["tokenizer.json"]
    with pytest.raises(DownloadError, match=r"has no file 'tokenizer.json'"):
        fetch("org/folder", tmp_path)


@pytest.mark.parametrize("name", ["../evil.json", "/etc/evil", "a/../../evil", "..\\evil", "C:evil", "a\nb", ""])
def test_a_listed_name_that_leaves_the_folder_is_refused(hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.repos["org/folder"].listed = {**FOLDER, name: b"evil"}
    with pytest.raises(DownloadError, match="could leave its folder"):
        fetch("org/folder", tmp_path / "cache")
    assert not list(tmp_path.rglob("*evil*"))


def test_credentials_follow_a_redirect_on_the_hub_but_not_to_another_host(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    with FakeHub() as mirror:
        mirror.repos["cdn/x"] = Repo({"blob": FOLDER["model.safetensors"]})
        hub.repos["org/renamed"] = hub.repos["org/folder"]
        blob = f"{mirror.url}/cdn/x/resolve/main/blob"
        here = f"{hub.url}/org/renamed/resolve/main/model.safetensors"
        hub.break_next("model.safetensors", Fault(redirect=here), Fault(redirect=blob))
        assert contents(fetch("org/folder", tmp_path).path) == FOLDER
        assert [seen.authorization for seen in hub.asked("model.safetensors")] == ["Bearer secret"] * 2
        assert [seen.authorization for seen in mirror.asked("blob")] == [""]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirects_lead_to_http_only(hub: FakeHub, tmp_path: Path, target: str) -> None:
    hub.break_next("model.safetensors", Fault(redirect=target))
    with pytest.raises(DownloadError):
        fetch("org/folder", tmp_path)
    assert b"root" not in b"".join(contents(tmp_path).values())


def test_endless_redirects_end(hub: FakeHub, tmp_path: Path) -> None:
    loop = f"{hub.url}/org/folder/resolve/main/model.safetensors"
    hub.break_next("model.safetensors", *[Fault(redirect=loop)] * 30)
    with pytest.raises(DownloadError):
        fetch("org/folder", tmp_path)


def test_no_network_says_what_else_can_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections to it are refused
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(DownloadError, match=r"no connection to 127.0.0.1") as caught:
            fetch("org/folder", tmp_path)
    assert caught.value.reason == "network"
    for way in ("HF_ENDPOINT", "package", "local folder"):
        assert way in caught.value.hint


def test_an_endpoint_that_is_no_hub_is_told_apart(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "ftp://example.org")
    with pytest.raises(DownloadError, match="not an http or https address"):
        fetch("org/folder", tmp_path)
    hub.repos["x"] = Repo({"api/models/org/folder/revision/main": b"<html>"})
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/x/resolve/main")
    with pytest.raises(DownloadError, match="did not answer with JSON"):
        fetch("org/folder", tmp_path)


def test_the_switches_of_the_ecosystem_and_our_own_keep_off_the_network(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="not in the cache") as caught:
        fetch("org/folder", tmp_path)
    assert caught.value.reason == "offline"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("VIVACE_OFFLINE", "1")
    with pytest.raises(DownloadError, match="vivace pull org/folder"):
        fetch("org/folder", tmp_path)
    assert not hub.seen
