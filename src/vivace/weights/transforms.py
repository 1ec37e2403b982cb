"""Named transforms from a file's tensor to the model's, for rename rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from vivace.errors import WeightError

Transform = Callable[[torch.Tensor, int], torch.Tensor]


def unpermute_rope(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a query or key projection from interleaved rotary pairs to halves.

    llama2.c and GGUF's llama architecture rotate rows (2j, 2j + 1) of a head together; Hugging Face rotates
    (j, j + head_dim / 2). Row 2j + k of a head becomes row k * head_dim / 2 + j; values are not touched.
    tensor: (heads * head_dim, ...), weight or bias.
    """
    rows = tensor.shape[0]
    if heads <= 0 or rows % (2 * heads):
        raise WeightError(f"{rows} rows cannot be split into rotary pairs of {heads} heads")
    pairs = tensor.reshape(heads, rows // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def offset_one(tensor: torch.Tensor, _: int) -> torch.Tensor:
    """w -> 1 + w, in the tensor's type: Hugging Face's Gemma stores a norm's weight less one.

    GGUF files store the sum, so that the model gets the effective weight from either, without a second rounding."""
    return 1.0 + tensor


def transpose(tensor: torch.Tensor, _: int) -> torch.Tensor:
    """(in, out) -> (out, in): GPT-2 stores its linear layers as one-dimensional convolutions."""
    return tensor.t().contiguous()


# These only reorder rows, so they may be applied to rows in any form, packed ones included.
ROW_TRANSFORMS = frozenset({"unpermute_rope"})

TRANSFORMS: Mapping[str, Transform] = MappingProxyType(
    {"unpermute_rope": unpermute_rope, "offset_one": offset_one, "transpose": transpose}
)
