"""`vivace run`: one answer on stdout, or a chat on the terminal."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from vivace.api.options import Options
from vivace.cli.chat import Chat
from vivace.cli.flags import Given, flags_of, with_flags
from vivace.cli.loading import loading
from vivace.cli.turn import Meter, ask, conversation, show
from vivace.cli.words import model_and_prompt
from vivace.config import EngineConfig
from vivace.errors import InvalidRequest
from vivace.weights.entries import Catalog

OPTIONS = flags_of(Options, leave_out=("logprobs", "prompt_logprobs", "speculation"), panel="The answer")
ENGINE = flags_of(EngineConfig, panel="The engine")
WORDS_HELP = (
    "A short name, hub id or path (see `vivace pull --help`), then the prompt in quotes. A single argument with a "
    "space in it is a prompt for the default model. Without a prompt: standard input, or a chat if that is a terminal."
)


@with_flags(options=OPTIONS, engine=ENGINE)
def run(
    words: Annotated[list[str] | None, typer.Argument(metavar="[MODEL] [PROMPT]", help=WORDS_HELP)] = None,
    system: Annotated[str | None, typer.Option(help="The system message.", show_default=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt without the chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object when the answer is complete.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print counts and speed on stderr.")] = False,
    *,
    options: Given,
    engine: Given,
) -> None:
    """Ask a model: one answer, or a chat when no prompt is given.

    Only the answer goes to standard output. The most likely token is taken each time unless --temperature says
    otherwise. The model is downloaded on first use. Models without a chat template continue the prompt, as --raw does.
    """
    name, prompt = model_and_prompt(words or [], Catalog().default)
    Options.of(options)  # before the model is loaded: a wrong value should not cost a download
    is_chat = prompt is None and sys.stdin.isatty()
    if prompt is None and not is_chat:
        prompt = sys.stdin.read().removesuffix("\n")  # the line end that `echo` adds is not part of the prompt
    if prompt is not None and not prompt.strip():
        raise InvalidRequest("the prompt is empty", field="prompt", hint='such as: vivace run smollm2 "Hello"')
    with loading(name, EngineConfig(**engine)) as model:
        model.need("generate")
        is_raw = raw or model.text.template is None
        if prompt is None:
            Chat(model, options, system=system, is_raw=is_raw, shows_stats=stats).loop()
            return
        meter = Meter()
        deltas = ask(model, conversation(system, prompt), options, is_raw=is_raw)
        text = show(meter.watch(deltas), is_quiet=as_json)
        if as_json:
            typer.echo(json.dumps(meter.report(model.info.name, text), ensure_ascii=False))
        if stats:
            typer.echo(meter.line(), err=True)
