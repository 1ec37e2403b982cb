"""`vivace tokenize`: how a model cuts a text into tokens, and back."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from vivace.errors import InvalidRequest

MAX_DIGITS = 12  # of a token id


def tokenize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A short name, hub id or path.")],
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Standard input if left out.")] = None,
    ids_only: Annotated[bool, typer.Option("--ids", help="Print the ids alone, on one line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="TEXT holds ids; print the text they stand for.")] = False,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Text that spells control tokens becomes them.")
    ] = False,
    add_special: Annotated[
        bool, typer.Option("--add-special", help="Add the tokens that begin and end a raw prompt, as the model asks.")
    ] = False,
) -> None:
    """Print the tokens of a text: id, piece, and their number. Only the tokenizer is loaded, no weights."""
    from vivace.api.text import load_text  # brings torch for .gguf files
    from vivace.cli.progress import TerminalProgress
    from vivace.weights.catalog import resolve

    given = sys.stdin.read() if text is None else text
    tokenizer = load_text(resolve(model, progress=TerminalProgress()).path).tokenizer
    if decode:
        typer.echo(tokenizer.decode(read_ids(given), skip_special=False))
        return
    encode = tokenizer.encode_prompt if add_special else tokenizer.encode
    ids = encode(given, parse_special=parse_special)
    if ids_only:
        typer.echo(" ".join(map(str, ids)))
        return
    pieces = [tokenizer.token_text(token_id) for token_id in ids]
    if as_json:
        typer.echo(json.dumps({"ids": ids, "pieces": pieces, "count": len(ids)}, ensure_ascii=False))
        return
    width = max((len(str(token_id)) for token_id in ids), default=0)
    for token_id, piece in zip(ids, pieces, strict=True):
        typer.echo(f"{token_id:>{width}}  {piece}")
    typer.echo(f"{len(ids)} tokens")


def read_ids(text: str) -> list[int]:
    """Ids of a text such as "1 2 3" or "[1, 2, 3]". Raises InvalidRequest."""
    words = text.replace(",", " ").replace("[", " ").replace("]", " ").split()
    for word in words:
        if not word.isdecimal() or len(word) > MAX_DIGITS:
            shown = word if len(word) <= 40 else f"{word[:37]}..."
            raise InvalidRequest(f"'{shown}' is no token id", field="ids", hint='give numbers, such as "504 3575 282"')
    return [int(word) for word in words]
