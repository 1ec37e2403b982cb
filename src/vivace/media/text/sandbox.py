"""The Jinja environment of chat templates: sandboxed, bounded in time and size, and followed character by character.

A template comes from a model file, so it is foreign code; the messages come from a client. Three guards:

- *Sandbox.* jinja2's immutable sandbox, with the filters and string methods that chat templates use and no others.
- *Bounds.* Every loop step, call, lookup, comparison and operator passes through `Meter.step`, every made text or
  container through `Meter.grow`; both raise once the budget is spent. So no loop can hide, and the work of one
  operation is bounded by the size of its operands, written out in full (a list may hold itself many times over).
- *Provenance.* All ways in which a template can make text out of text end in `provenance`: operators, `~`, output,
  blocks, filters and string methods. What is not followed there counts as the caller's text.

One environment serves one rendering, so nothing is shared between requests.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import filters, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vivace.media.text.meter import BudgetSpentError, Meter
from vivace.media.text.provenance import MarkedText, is_marked, join, mark_result, mark_whole

MAX_SOURCE = 1 << 18
_MAX_WIDTH = 10_000
_MAX_INT_BITS = 4096

# fmt: off
_STRING_METHODS = frozenset({
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii",
    "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower",
    "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit",
    "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
})
# Filters that hand on what they were given, or make no text.
_HANDING_ON = frozenset({
    "abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float",
    "groupby", "int", "items", "last", "length", "list", "map", "max", "min",
    "reject", "rejectattr", "reverse", "round", "select", "selectattr", "slice", "sort", "unique",
    "wordcount",
})
# fmt: on
# Filters whose text counts as the caller's as a whole.
_UNFOLLOWED = ("e", "escape", "indent", "truncate")
_WITH_WIDTH = frozenset({"batch", "indent", "round", "slice", "truncate"})
_WIDE_FIELD = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})|\{[^{}]*:[^{}]*(?:\{|\d{5})")


class TemplateError(jinja2.TemplateError):
    """The template itself refused the messages with `raise_exception`."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CodeGenerator(CodeGenerator):
    """Sends what jinja2 does not: `a ~ b`, comparisons and literals of containers, through the environment too."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.join_values((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self._count_made(super().visit_Compare, node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._count_made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._count_made(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._count_made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _count_made(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.count_made(")
        visit(node, frame)
        self.write(")")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """See the head of this file. Behaves as transformers' environment does, apart from the bounds."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, meter: Meter, now: datetime | None = None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, loopcontrols],
            finalize=self._to_output,
            cache_size=0,
            optimized=False,  # folding constants takes quadratic time in a long expression
        )
        self.meter = meter
        self.concat = self.join_values  # type: ignore[method-assign]
        self.filters = self._make_filters()
        self.tests = {name: self._counted(cast(Callable[..., Any], test)) for name, test in self.tests.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._unfollowed(lambda form: (now or datetime.now()).strftime(form))

    def join_values(self, values: Iterable[Any]) -> str:
        """Return the values as one text: what `~`, blocks and the whole output do."""
        self.meter.step()
        parts = [self._to_text(value) for value in values]
        self.meter.reserve(sum(map(len, parts)))
        return join("", parts)

    def count_made(self, value: Any) -> Any:
        """Return what a comparison or a literal gave."""
        self.meter.step()
        return self.meter.grow(value)

    def count_steps(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of a loop, each of them one step."""
        for item in items:
            self.meter.step()
            yield item

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.step()
        self._check_operands(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if operator == "%" and is_marked((left, right)):
            result = mark_result(result)
        return self.meter.grow(result)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.meter.step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.meter.step()
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Any:
        owner = getattr(value, "__self__", None)
        if not isinstance(owner, str) or value.__name__ not in ("format", "format_map"):
            return None
        # Of the plain string, since jinja2 makes the result of the owner's own type.
        wrapped = super().wrap_str_format(getattr(str.__str__(owner), value.__name__))
        assert wrapped is not None

        def fill_in(*args: Any, **kwargs: Any) -> Any:
            return self._format(owner, wrapped, *args, **kwargs)

        return fill_in

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.meter.step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            for scope in ("_loop_vars", "_block_vars"):  # jinja2 passes the variables of loops and blocks along
                kwargs.pop(scope, None)
            return __self._call_string_method(owner, __obj.__name__, args, kwargs)
        return __self.meter.grow(super().call(__context, __obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        if tree.find(nodes.EvalContextModifier) is not None:
            raise SecurityError("autoescape is not available in chat templates")
        for loop in tree.find_all(nodes.For):
            count = nodes.EnvironmentAttribute("count_steps")
            loop.iter = nodes.Call(count, [loop.iter], [], None, None, lineno=loop.lineno)
        return tree

    def _call_string_method(self, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name not in _STRING_METHODS:
            raise SecurityError(f"the string method '{name}' is not available in chat templates")
        if name == "join" and args:
            args = (list(args[0]), *args[1:])
        if not isinstance(owner, MarkedText) and is_marked((args, tuple(kwargs.values()))):
            owner = MarkedText(owner, bytes(len(owner)))
        if name == "replace" and len(args) > 1:
            self.meter.reserve(len(owner) + (owner.count(args[0]) * len(args[1])))
        if name == "join" and args:
            self.meter.reserve(sum(len(part) + len(owner) for part in args[0]))
        return self.meter.grow(getattr(owner, name)(*args, **kwargs))

    def _format(self, form: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method or filter that fills in `form`."""
        self.meter.step()
        if _WIDE_FIELD.search(form):
            raise BudgetSpentError("a format field is too wide")
        result = function(*args, **kwargs)
        return self.meter.grow(mark_result(result) if is_marked((form, args, list(kwargs.values()))) else result)

    def _check_operands(self, operator: str, left: Any, right: Any) -> None:
        """Refuse what would be huge before it is made."""
        if operator == "*" and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            sequence, count = (right, left) if isinstance(left, int) else (left, right)
            if hasattr(sequence, "__len__") and isinstance(count, int):
                self.meter.reserve(len(sequence) * max(0, count))
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            factor = abs(right) if operator == "**" else 1
            bits = left.bit_length() * factor + (right.bit_length() if operator == "*" else 0)
            if bits > _MAX_INT_BITS:
                raise BudgetSpentError("a number is too large")
        elif operator == "%" and isinstance(left, str) and _WIDE_FIELD.search(left):
            raise BudgetSpentError("a format field is too wide")

    def _to_output(self, value: Any) -> Any:
        self.meter.step()
        return self._to_text(value)

    def _to_text(self, value: Any) -> str:
        """Return a value as text. What is neither text nor a number may hold text of the caller."""
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float, Undefined, type(None))):
            return str(value)
        is_data = isinstance(value, (list, tuple, dict, range, KeysView, ValuesView, ItemsView))
        return mark_whole(str(value) if is_data else f"<{type(value).__name__}>")

    def _make_filters(self) -> dict[str, Callable[..., Any]]:
        made = {name: self._counted(_bounded(name)) for name in _HANDING_ON}
        made |= {name: self._unfollowed(self._counted(_bounded(name))) for name in _UNFOLLOWED}
        followed: dict[str, Callable[..., Any]] = {
            "capitalize": lambda value: self._to_text(value).capitalize(),
            "format": lambda value, *args, **kwargs: self._format(
                self._to_text(value), filters.do_format, value, *args, **kwargs
            ),
            "join": self._join,
            "lower": lambda value: self._to_text(value).lower(),
            "replace": self._replace,
            "safe": self._to_text,
            "string": self._to_text,
            "sum": self._sum,
            "title": self._title,
            "tojson": self._to_json,
            "trim": lambda value, chars=None: self._to_text(value).strip(chars),
            "upper": lambda value: self._to_text(value).upper(),
        }
        return made | {name: self._counted(function) for name, function in followed.items()}

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            return self.meter.grow(function(*args, **kwargs))

        return counted

    def _unfollowed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with its text marked as the caller's if any text given to it is."""

        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return mark_result(result) if is_marked((args, tuple(kwargs.values()))) else result

        return marked

    def _sum(self, value: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
        get = filters.make_attrgetter(self, attribute) if attribute is not None else None
        for item in value:
            start = self.call_binop(None, "+", start, get(item) if get else item)  # type: ignore[arg-type]
        return start

    def _join(self, value: Iterable[Any], separator: Any = "", attribute: str | int | None = None) -> str:
        get = filters.make_attrgetter(self, attribute) if attribute is not None else None
        parts = [self._to_text(get(item) if get else item) for item in value]
        self.meter.reserve(sum(map(len, parts)))
        return join(self._to_text(separator), parts)

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = self._to_text(value), self._to_text(old), self._to_text(new)
        args = (old, new) if count is None else (old, new, count)
        return str(self._call_string_method(text, "replace", args, {}))

    def _title(self, value: Any) -> str:
        text = self._to_text(value)
        titled = str(filters.do_title(text))
        return mark_whole(titled) if isinstance(text, MarkedText) else titled

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        if isinstance(indent, int) and indent > _MAX_WIDTH:
            raise BudgetSpentError("too wide an indent")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=bool(sort_keys)
        )
        parts = []
        for part in encoder.iterencode(value):
            self.meter.reserve(len(part))
            parts.append(str.__str__(part))
        text = "".join(parts)
        return mark_whole(text) if is_marked(value) else text


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _bounded(name: str) -> Callable[..., Any]:
    """Return jinja2's filter of that name; where it takes a width, that width is bounded."""
    function: Callable[..., Any] = filters.FILTERS[name]
    if name not in _WITH_WIDTH:
        return function

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, int) and abs(value) > _MAX_WIDTH for value in (*args[1:], *kwargs.values())):
            raise BudgetSpentError(f"too large a number for the filter '{name}'")
        return function(*args, **kwargs)

    return bounded
