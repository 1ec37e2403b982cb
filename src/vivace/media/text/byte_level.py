"""The byte alphabet of GPT-2's byte-level BPE: each byte has one printable character (Radford et al., 2019)."""

from __future__ import annotations

from types import MappingProxyType


def _make_alphabet() -> dict[int, str]:
    """Return byte -> character: printable Latin-1 stands for itself, the others follow from U+0100 on in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


CHAR_OF_BYTE = MappingProxyType(_make_alphabet())
BYTE_OF_CHAR = MappingProxyType({char: byte for byte, char in CHAR_OF_BYTE.items()})


def bytes_of_piece(piece: str) -> bytes:
    """Return the bytes that a byte-level piece spells; a piece outside the alphabet is taken as plain text."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in piece])
    except KeyError:
        return piece.encode("utf-8")
