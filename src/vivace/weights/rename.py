"""Rename rules as data: how a model's own weight names (Hugging Face's) are spelt in one kind of file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


class NamePattern:
    """A name with placeholders. `{rest}` stands for any text, every other one, such as `{i}`, for a decimal number."""

    def __init__(self, text: str) -> None:
        self.text = text
        pieces = re.split(r"\{(\w+)\}", text)
        self.fields = frozenset(pieces[1::2])
        for k, piece in enumerate(pieces):
            is_field = k % 2 == 1
            pieces[k] = f"(?P<{piece}>{'.+' if piece == 'rest' else '[0-9]+'})" if is_field else re.escape(piece)
        self._regex = re.compile("".join(pieces))

    def match(self, name: str) -> dict[str, str] | None:
        """The values of the placeholders if `name` has this form, else None."""
        found = self._regex.fullmatch(name)
        return found.groupdict() if found else None


@dataclass(frozen=True)
class Rename:
    """One rule: the weight that the model calls `ours` is called `theirs` in the file.

    `transform` names an entry of TRANSFORMS that turns the file's tensor into the model's, and `by` the size that
    it needs, for instance "num_heads" (looked up in the sizes given to Weights).
    An `optional` rule is an alternative spelling, tried as well as the name itself.

        Rename("model.layers.{i}.self_attn.q_proj.weight", "blk.{i}.attn_q.weight", "unpermute_rope", by="num_heads")
    """

    ours: str
    theirs: str
    transform: str = ""
    by: str = ""
    optional: bool = False
    _pattern: NamePattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pattern", NamePattern(self.ours))
        assert NamePattern(self.theirs).fields <= self._pattern.fields, f"placeholders differ in {self}"

    def apply(self, name: str) -> str | None:
        """The file's name for the model's `name`, or None if the rule is not about it."""
        values = self._pattern.match(name)
        return None if values is None else self.theirs.format_map(values)


@dataclass(frozen=True)
class Spelling:
    """One possible name in the file, with the rules that led to it (their transforms apply in reverse order)."""

    name: str
    rules: tuple[Rename, ...] = ()


def spellings(name: str, rules: Sequence[Rename]) -> list[Spelling]:
    """All names under which the model's weight `name` may stand in the file, the likeliest first.

    The first rule that is not optional and fits decides; each optional rule that fits adds alternatives.
    """
    found = [Spelling(name)]
    for rule in rules:
        renamed = None if rule.optional else rule.apply(name)
        if renamed is not None:
            found = [Spelling(renamed, (rule,))]
            break
    for rule in rules:
        if rule.optional:
            found += [
                Spelling(renamed, (*spelling.rules, rule))
                for spelling in found
                if (renamed := rule.apply(spelling.name)) is not None
            ]
    return found


def with_prefix(prefix: str) -> Rename:
    """The file may put `prefix` before every name, as files of a model with a head do ("bert.")."""
    return Rename("{rest}", f"{prefix}{{rest}}", optional=True)


def without_prefix(prefix: str) -> Rename:
    """The file may leave out the `prefix` that the model's names begin with, as files of a bare model do ("model.")."""
    return Rename(f"{prefix}{{rest}}", "{rest}", optional=True)


# Checkpoints from the first TensorFlow conversions name the parameters of LayerNorm after the paper's symbols.
LEGACY_NORM_NAMES = (
    Rename("{rest}.weight", "{rest}.gamma", optional=True),
    Rename("{rest}.bias", "{rest}.beta", optional=True),
)
