r"""How byte-level BPE vocabularies in GGUF files cut text into words, by the value of `tokenizer.ggml.pre`.

A kind is a list of regular expressions applied in turn: each cuts the pieces that the one before left, and what no
match covers stays a piece of its own. The expressions are those of the models' published tokenizer.json files, in the
form in which llama.cpp applies them, whose ids are the reference here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
# A run of letters that changes from upper to lower case once; letters beyond ASCII count as both.
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_HAN_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
_ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"


def _llama_like(digits: str, letters: str = _LETTERS, symbols: str = _SYMBOLS, spaces: str = _SPACES) -> str:
    return "|".join([_CONTRACTION, letters, digits, symbols, spaces])


_LLAMA3 = _llama_like(r"\p{N}{1,3}")
_QWEN2 = _llama_like(r"\p{N}")
_CASED = rf"{_HEAD}{_UPPER}*{_LOWER}+%s|{_HEAD}{_UPPER}+{_LOWER}*%s|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_DEEPSEEK3 = rf"{_ASCII_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True)
class PreTokenizer:
    """The cutting rules of one kind. `ignore_merges`: a word that is a token is taken whole; `adds_bos` by default."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_FAMILIES: Mapping[PreTokenizer, str] = {
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")): "default",
    PreTokenizer((_GPT2,)): (
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
        "modern-bert mpt olmo jais trillion granite-docling exaone4"
    ),
    PreTokenizer((r"\p{N}", _GPT2)): ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")): "falcon",
    PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True): (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
    ),
    PreTokenizer((_LLAMA3,)): "dbrx smaug-bpe chatglm-bpe",
    PreTokenizer((_LLAMA3,), ignore_merges=True): "glm4 glm5",
    PreTokenizer((r"\p{N}{1,3}", _llama_like(r"\p{N}+")), ignore_merges=True): "minicpm5",
    PreTokenizer((_QWEN2,)): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    PreTokenizer(
        (_llama_like(r"\p{N}", letters=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", symbols=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)
    ): "qwen35",
    PreTokenizer(("|".join([_LETTERS, r"\p{N}", _SYMBOLS, _SPACES]),)): "ufakzeka",
    PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)): "laguna",
    PreTokenizer((_llama_like(r"\p{N}", symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),)): "seed-coder",
    PreTokenizer(
        (
            "|".join(
                [
                    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
                    _LETTERS,
                    r"\p{N}",
                    _SYMBOLS,
                    r"\s*[\r\n]|\s+(?!\S)|\s+",
                ]
            ),
        )
    ): "bailingmoe bailingmoe2 llada-moe",
    PreTokenizer((_CASED % (_CONTRACTION + "?", _CONTRACTION + "?", r"\p{N}{1,3}"),)): (
        "gpt-4o llama4 kanana2 talkie minimax-m2"
    ),
    PreTokenizer((_CASED % ("", "", r"\p{N}"),), ignore_merges=True, adds_bos=True): "tekken",
    PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3)): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿&&[^\s]]+", r"\p{N}")): "deepseek-coder",
    PreTokenizer((_BLOOM,)): "poro-chat bloom gpt3-finnish",
    PreTokenizer((_BLOOM, r"\p{N}")): "viking",
    PreTokenizer((r"\p{N}+", r"(?=([0-9]{3})+(?![0-9]))")): "superbpe",
}

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: kind for kind, names in _FAMILIES.items() for name in names.split()}
)

# Kinds whose pieces are not byte-level BPE words; cutting them by the default rules would give wrong ids.
UNSUPPORTED = frozenset({"gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe", "whitespace", "kimi-k2"})
