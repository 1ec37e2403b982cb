"""BERT against transformers: packed sequences, token types, old weight names, and each feature switched off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel

from tests.oracle.compare import OTHER, SAME, Case, Made, Maker, error, switches
from tests.oracle.driver import encode
from vivace.kernels.ops import Ops
from vivace.kernels.select import BoundOps
from vivace.layers.context import Context
from vivace.models.load import load_model

pytestmark = pytest.mark.oracle

LENGTHS = (1, 23, 7, 40)
CASE = Case(
    "bert",
    {
        "vocab_size": 101,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "max_position_embeddings": 40,
        "type_vocab_size": 3,
        "layer_norm_eps": 0.05,  # large enough to be seen
    },
    off={
        "exact gelu": lambda config: replace(config, activation="relu"),
        "eps": lambda config: replace(config, layer_norm_eps=1e-6),
    },
    cut={
        "token types": lambda model: replace(model, token_types=lambda ids, ctx: torch.zeros(len(ids), 48)),
        "positions": lambda model: replace(model, positions=lambda ids, ctx: torch.zeros(len(ids), 48)),
        "embedding norm": lambda model: replace(model, norm=lambda x, ctx: x),
    },
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Maker(tmp_path_factory.mktemp("bert"), BertConfig, BertModel)(CASE)


def texts() -> tuple[list[list[int]], list[list[int]]]:
    """Token ids and token types of a few sequences."""
    generator = torch.Generator().manual_seed(5)
    ids = [torch.randint(0, 101, (length,), generator=generator).tolist() for length in LENGTHS]
    types = [torch.randint(0, 3, (length,), generator=generator).tolist() for length in LENGTHS]
    return ids, types


def peer_hidden(peer: Any) -> list[Tensor]:
    """The peer's hidden states, one sequence at a time."""
    with torch.no_grad():
        return [
            peer(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).last_hidden_state[0]
            for ids, types in zip(*texts(), strict=True)
        ]


def worst(model: Any, ops: Ops, theirs: list[Tensor]) -> float:
    ours = encode(model, ops, *texts())
    return max(error(one, other) for one, other in zip(ours, theirs, strict=True))


def test_hidden_states_equal_the_peers(made: Made, ops: BoundOps) -> None:
    assert worst(made.load(ops), ops, peer_hidden(made.peer)) < SAME


@pytest.mark.parametrize(("case", "switch"), switches([CASE]))
def test_switching_a_feature_off_is_seen(case: Case, switch: str, made: Made, ops: BoundOps) -> None:
    assert worst(made.load_without(switch, ops), ops, peer_hidden(made.peer)) > OTHER


def test_the_pooler_equals_the_peers(made: Made, ops: BoundOps) -> None:
    ids, types = texts()
    model = made.load(ops)
    first = torch.stack([hidden[0] for hidden in encode(model, ops, ids, types)])
    rows: Any = None  # the pooler looks at no rows
    ours = model.pool(first, Context(ops, rows))
    with torch.no_grad():
        theirs = [
            made.peer(input_ids=torch.tensor([one]), token_type_ids=torch.tensor([kinds])).pooler_output[0]
            for one, kinds in zip(ids, types, strict=True)
        ]
    assert error(ours, torch.stack(theirs)) < SAME


def test_old_names_and_a_pretraining_head_are_read(tmp_path: Path, ops: BoundOps) -> None:
    maker = Maker(tmp_path, BertConfig, BertForMaskedLM)
    made = maker(CASE)
    file = made.folder / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in safetensors.torch.load_file(file).items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(40)[None]
    assert any(name.endswith("gamma") for name in old)
    safetensors.torch.save_file(old, file)
    model: Any = load_model(made.folder, ops)
    assert model.pooler is None
    assert worst(model, ops, peer_hidden(made.peer.bert)) < SAME


def test_the_tanh_approximation_of_gelu_is_seen(made: Made, ops: BoundOps) -> None:
    # A smaller difference than other switches make, but above what counts as the same.
    close = replace(CASE, off={"tanh": lambda config: replace(config, activation="gelu_tanh")})
    model = replace(made, case=close).load_without("tanh", ops)
    assert worst(model, ops, peer_hidden(made.peer)) > SAME
