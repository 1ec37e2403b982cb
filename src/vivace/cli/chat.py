"""The chat on the terminal: a prompt line, a history, and commands that begin with a slash."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import typer

from vivace.api.options import Options
from vivace.cli.flags import Given, find_flag, flags_of
from vivace.cli.turn import Message, Meter, ask
from vivace.errors import ContextLengthExceeded, VivaceError, nearest

if TYPE_CHECKING:
    from vivace.api import Model

SETTABLE = flags_of(Options, leave_out=("logprobs", "prompt_logprobs", "logit_bias"))
HELP = """\
/set NAME VALUE   change an option of the next answers, such as: /set temperature 0.7
/set              show the options
/system TEXT      set the system message (without TEXT: remove it)
/clear            forget the conversation
/help             this
/exit             end (or Ctrl-D); Ctrl-C stops an answer"""


class Chat:
    """One conversation. Raw models see each line alone: they have no form for a history."""

    def __init__(self, model: Model, options: Given, *, system: str | None, is_raw: bool, shows_stats: bool) -> None:
        self._model = model
        self._options = dict(options)
        self._system = system
        self._is_raw = is_raw
        self._shows_stats = shows_stats
        self._turns: list[Message] = []
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/set": self._set,
            "/system": self._set_system,
            "/clear": self._clear,
            "/help": self._help,
        }

    def loop(self) -> None:
        """Read lines and answer until the end of input."""
        # A shell starts background jobs with Ctrl-C ignored, and programs inherit that; a chat promises to hear it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # line editing and history for input()
        note(f"{self._model.info.name} is ready. /help shows the commands, /exit ends.")
        if self._is_raw:
            note("Without a chat template each line is continued for itself: there is no conversation.")
        while True:
            try:
                line = input(">>> ").strip()
            except EOFError:
                typer.echo("")
                return
            except KeyboardInterrupt:
                typer.echo("")
                continue
            if line == "/exit":
                return
            self.take(line)

    def take(self, line: str) -> None:
        """Answer one line, or obey it. Errors are shown and the conversation goes on."""
        try:
            if line.startswith("/"):
                word, _, rest = line.partition(" ")
                self._obey(word, rest.strip())
            elif line:
                self._answer(line)
        except ContextLengthExceeded as error:
            note(f"error: {error.message}\nhint: /clear forgets the conversation so far")
        except VivaceError as error:
            note(f"error: {error}")

    def _answer(self, line: str) -> None:
        history = [] if self._is_raw else self._turns
        first = [] if self._system is None else [{"role": "system", "content": self._system}]
        user = {"role": "user", "content": line}
        meter = Meter()
        pieces: list[str] = []
        try:
            deltas = ask(self._model, [*first, *history, user], self._options, is_raw=self._is_raw)
            for delta in meter.watch(deltas):
                pieces.append(delta.text)
                typer.echo(delta.text, nl=False)
        except KeyboardInterrupt:
            typer.echo(" [stopped]", nl=False, err=True)
        typer.echo("")
        self._turns += [user, {"role": "assistant", "content": "".join(pieces)}]
        if self._shows_stats:
            note(meter.line())

    def _obey(self, word: str, rest: str) -> None:
        if word in self._commands:
            self._commands[word](rest)
        else:
            note(f"error: unknown command {word}\nhint: {nearest(word, [*self._commands, '/exit'])}")

    def _set(self, rest: str) -> None:
        name, _, value = rest.replace("=", " ", 1).partition(" ")
        if name and value.strip():
            flag = find_flag(SETTABLE, name)
            changed = {**self._options, flag.name: flag.parse(value.strip())}
            Options.of(changed)
            self._options = changed
        current = Options.of(self._options)
        shown = [flag for flag in SETTABLE if not name or flag is find_flag(SETTABLE, name)]
        note("\n".join(f"{flag.name} = {getattr(current, flag.name)}" for flag in shown))

    def _set_system(self, text: str) -> None:
        self._system = text or None
        note("the system message is set" if text else "no system message")

    def _clear(self, rest: str) -> None:
        self._turns.clear()
        note("the conversation is forgotten")

    def _help(self, rest: str) -> None:
        note(HELP)


def note(text: str) -> None:
    """A line beside the conversation: on stderr, so that stdout holds answers only."""
    typer.echo(text, err=True)
