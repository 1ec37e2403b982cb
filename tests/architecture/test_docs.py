"""The docs stay true: the reference is fresh, links lead somewhere, and what the guides show is run.

A code block of a guide runs in one namespace per page, in order. `<!-- tiny -->` before the first line of a block puts
the tiny test model in the place of the named one; a block without a mark needs the real model, and skips without it.
`<!-- not run: why -->` leaves a block out. A console block after `<!-- tiny -->` is run with the tiny model, and its
output must be the one shown.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.docs import TARGET, pages
from vivace.cli.main import make_app

DOCS = Path(__file__).resolve().parents[2] / "docs"
TINY = DOCS.parent / "tests" / "assets" / "tiny-llama"
PAGES = sorted(path for kind in ("guide", "concept", "reference") for path in (DOCS / kind).glob("*.md"))
GUIDES = [path for path in PAGES if path.parent.name == "guide"]
BLOCK = re.compile(r"(?:<!-- (?P<mark>[^>]+) -->\n)?```(?P<kind>python|console)\n(?P<code>.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
A_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
NAMES = ("smollm2", "gemma3-270m", "minilm")


@dataclass(frozen=True)
class Block:
    """A block of a page: the word of its mark ("" without one), its kind and its text."""

    mark: str
    kind: str
    code: str


def blocks(path: Path) -> list[Block]:
    return [Block((found["mark"] or ""), found["kind"], found["code"]) for found in BLOCK.finditer(path.read_text())]


@pytest.mark.parametrize("name", pages())
def test_the_reference_is_what_the_code_says(name: str) -> None:
    path = TARGET / name
    assert path.exists() and path.read_text() == pages()[name], f"{name} is stale: run `make docs`"


def test_no_page_of_the_reference_is_left_over() -> None:
    assert {path.name for path in TARGET.glob("*.md")} == set(pages())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_links_lead_to_files(path: Path) -> None:
    links = [link for link in LINK.findall(path.read_text()) if "://" not in link]
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_tests_that_a_page_names_exist(path: Path) -> None:
    named = A_TEST.findall(path.read_text())
    missing = [(file, name) for file, name in named if not _has_test(DOCS.parent / file, name)]
    assert not missing


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_marks_are_known(path: Path) -> None:
    marks = {block.mark for block in blocks(path)}
    assert all(mark in ("", "tiny") or mark.startswith("not run: ") for mark in marks)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_python_of_a_guide_runs(
    path: Path, real_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIVACE_THREADS", "1")
    namespace: dict[str, object] = {"__name__": "guide"}
    wanted = [block for block in blocks(path) if block.kind == "python" and not block.mark.startswith("not run")]
    for name in {name for block in wanted if not block.mark for name in NAMES if name in block.code}:
        real_model(name)
    for block in wanted:
        code = block.code
        if block.mark == "tiny":
            code = code.replace('"smollm2"', repr(str(TINY)))
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_console_of_a_guide_prints_what_it_shows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_THREADS", "1")
    for block in blocks(path):
        if block.kind == "console" and block.mark == "tiny":
            for command, expected in _commands(block.code):
                assert _run(command) == expected


def _has_test(path: Path, name: str) -> bool:
    return path.exists() and (not name or f"def {name}(" in path.read_text())


def _commands(code: str) -> list[tuple[str, str]]:
    """Commands of a console block ("$ vivace ...") with the output shown below each."""
    found = []
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        found.append((command, expected))
    return found


def _run(command: str) -> str:
    program, *words = shlex.split(command)
    assert program == "vivace", command
    words = [str(TINY) if word == "smollm2" else word for word in words]
    result = CliRunner().invoke(make_app(), words, env={**os.environ, "COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.stdout
