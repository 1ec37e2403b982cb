"""Marked text behaves as plain text does, and no mark of the caller is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.media.text.provenance import CALLER, MarkedText, is_marked, join, mark_data, mark_whole, marks_of

# Small letters are the caller's and capital ones the template's, so that marks can be checked by eye and by rule.
_TEXT = st.text("abc \n\r\t\u2028ABC", max_size=15)


def _mark(text: str) -> MarkedText:
    return MarkedText(text, bytes(CALLER if char.islower() else 0 for char in text))


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [text for part in value for text in _texts(part)]


_EXACT: dict[str, Callable[[str, str], Any]] = {
    "strip": lambda a, b: a.strip(),
    "strip some": lambda a, b: a.strip("aA \n"),
    "lstrip": lambda a, b: a.lstrip(),
    "rstrip": lambda a, b: a.rstrip(),
    "split": lambda a, b: a.split(),
    "split few": lambda a, b: a.split(None, 1),
    "split at": lambda a, b: a.split("a"),
    "split few at": lambda a, b: a.split("bc", 1),
    "rsplit": lambda a, b: a.rsplit(None, 1),
    "rsplit at": lambda a, b: a.rsplit("a", 1),
    "splitlines": lambda a, b: a.splitlines(),
    "splitlines with ends": lambda a, b: a.splitlines(True),
    "partition": lambda a, b: a.partition("b"),
    "rpartition": lambda a, b: a.rpartition("b"),
    "removeprefix": lambda a, b: a.removeprefix("a"),
    "removesuffix": lambda a, b: a.removesuffix("a"),
    "replace": lambda a, b: a.replace("a", b),
    "replace some": lambda a, b: a.replace("ab", b, 1),
    "join": lambda a, b: a.join([b, "X", b]),
    "add": lambda a, b: a + b,
    "add plain": lambda a, b: a + "X",
    "add to plain": lambda a, b: "X" + a,
    "repeat": lambda a, b: a * 2,
    "repeat from the left": lambda a, b: 2 * a,
    "slice": lambda a, b: a[1:-1],
    "reverse": lambda a, b: a[::-1],
    "items": lambda a, b: list(a),
    "last": lambda a, b: a[-1:] and a[-1],
    "module join": lambda a, b: join("-", [a, "X", b]),
    "str": lambda a, b: str(a),
}


@pytest.mark.parametrize("name", sorted(_EXACT))
@given(_TEXT, _TEXT)
def test_followed_operations_keep_text_and_marks(name: str, a: str, b: str) -> None:
    operation = _EXACT[name]
    plain, marked = operation(a, b), operation(_mark(a), _mark(b))
    assert marked == plain
    for text in _texts(marked):
        assert marks_of(text) == bytes(CALLER if char.islower() else 0 for char in text)


@pytest.mark.parametrize("method", ["lower", "upper", "capitalize", "title"])
@given(st.text("aßİŉAſ ", max_size=8))
def test_changes_of_case_keep_marks_or_mark_all(method: str, text: str) -> None:
    marked = MarkedText(text, bytes(CALLER if char != "A" else 0 for char in text))
    changed = getattr(marked, method)()
    assert changed == getattr(text, method)()
    same_length = len(changed) == len(text)
    assert marks_of(changed) == (marks_of(marked) if same_length else bytes([CALLER]) * len(changed))


# Those that mix two texts are checked above; encode and the like are out of a template's reach.
_LEFT_OUT = {"__add__", "__radd__", "join", "replace", "maketrans", "encode", "__getnewargs__", "__iter__"}


@pytest.mark.parametrize("method", sorted(set(dir(str)) - set(dir(object)) - _LEFT_OUT))
def test_every_method_that_gives_text_gives_marked_text(method: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "format_map": ({},),
        "translate": ({},),
        "__mod__": ((),),
        "__rmod__": ("%s",),
        "__mul__": (2,),
        "__rmul__": (2,),
        "__getitem__": (0,),
    }
    one_text = ("partition", "rpartition", "removeprefix", "removesuffix", "count", "endswith", "find", "index")
    one_text += ("rfind", "rindex", "startswith", "__contains__")
    widths = ("center", "ljust", "rjust", "zfill")
    given_arguments = arguments.get(method, ("a",) if method in one_text else (9,) if method in widths else ())
    result = getattr(mark_whole("ab a"), method)(*given_arguments)
    if isinstance(result, (str, list, tuple)):
        assert all(isinstance(text, MarkedText) for text in _texts(result))
        assert all(marks_of(text) == bytes([CALLER]) * len(text) for text in _texts(result))


def test_data_is_marked_down_to_its_keys_and_foreign_objects_become_names() -> None:
    data = mark_data({"a": ["b", {"c": (1, 2.5, True, None, object())}]})
    assert data == {"a": ["b", {"c": [1, 2.5, True, None, "<object>"]}]}
    assert all(isinstance(key, MarkedText) for key in data)
    assert is_marked([{"plain": data["a"]}])
    assert not is_marked([{"plain": ["text", 1]}])
