"""Reading sentence-transformers folders: both pooling schemas, Dense, prompts, lengths, refusals."""

import json
from pathlib import Path

import pytest

from vivace.errors import UnsupportedModel
from vivace.pipelines.sentence import (
    DenseConfig,
    Normalize,
    SentenceConfig,
    read_pooling,
    read_sentence_config,
    shortened,
)

PREFIX = "sentence_transformers.models."


def _write(folder: Path, files: dict[str, object]) -> Path:
    for name, value in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def _modules(*kinds: str) -> list[dict[str, str]]:
    paths = {"Transformer": ""}
    return [
        {"idx": i, "name": str(i), "path": paths.get(kind, f"{i}_{kind}"), "type": PREFIX + kind}
        for i, kind in enumerate(kinds)
    ]


def test_a_folder_with_everything_is_read(tmp_path: Path) -> None:
    folder = _write(
        tmp_path,
        {
            "modules.json": _modules("Transformer", "Pooling", "Dense", "Normalize"),
            "1_Pooling/config.json": {
                "word_embedding_dimension": 8,
                "pooling_mode_mean_tokens": True,
                "pooling_mode_cls_token": True,
                "pooling_mode_max_tokens": False,
                "include_prompt": False,
            },
            "2_Dense/config.json": {
                "in_features": 16,
                "out_features": 4,
                "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            },
            "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": True},
            "config_sentence_transformers.json": {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
            "config.json": {"matryoshka_dimensions": [2, 4]},
        },
    )
    assert read_sentence_config(folder) == SentenceConfig(
        modes=("cls", "mean"),
        include_prompt=False,
        steps=(DenseConfig(folder / "2_Dense", 16, 4, has_bias=False, activation=None), Normalize()),
        max_length=128,
        lower_case=True,
        prompts={"query": "query: "},
        default_prompt="query",
        matryoshka=(2, 4),
    )


def test_a_folder_without_modules_is_the_mean_of_its_tokens(tmp_path: Path) -> None:
    assert read_sentence_config(_write(tmp_path, {"config.json": {}})) == SentenceConfig()


def test_the_longest_text_falls_back_to_the_tokenizers(tmp_path: Path) -> None:
    assert read_sentence_config(_write(tmp_path, {"tokenizer_config.json": {"model_max_length": 77}})).max_length == 77
    huge = {"tokenizer_config.json": {"model_max_length": 10**30}}
    assert read_sentence_config(_write(tmp_path, huge)).max_length is None


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode": "lasttoken"}, ("lasttoken",)),
        ({"pooling_mode": ["weightedmean", "mean_sqrt_len_tokens"]}, ("weightedmean", "mean_sqrt_len")),
        ({"pooling_mode_lasttoken": True, "pooling_mode_cls_token": False}, ("lasttoken",)),
        ({"pooling_mode_mean_tokens": False}, ("mean",)),
    ],
)
def test_both_schemas_of_pooling_are_read(config: dict, modes: tuple[str, ...]) -> None:
    assert read_pooling(config) == (modes, True)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": "{"}, "not valid JSON"),
        ({"modules.json": {}}, "expected list"),
        ({"modules.json": ["x"]}, "without a type"),
        ({"modules.json": _modules("CNN")}, "kind 'CNN'"),
        ({"modules.json": [{"type": PREFIX + "Dense", "path": "../../etc"}]}, "outside of the model"),
        ({"modules.json": [{"type": PREFIX + "Dense", "path": "/etc"}]}, "outside of the model"),
        ({"modules.json": _modules("Pooling"), "0_Pooling/config.json": {"pooling_mode": "median"}}, "'median'"),
        ({"modules.json": _modules("Pooling"), "0_Pooling/config.json": {"pooling_mode_x": True}}, "'pooling_mode_x'"),
        ({"modules.json": _modules("Dense"), "0_Dense/config.json": {"use_residual": True}}, "residual"),
        ({"modules.json": _modules("Dense"), "0_Dense/config.json": {"activation_function": "a.B"}}, "'B'"),
        ({"modules.json": _modules("Dense"), "0_Dense/config.json": {}}, "in_features"),
    ],
)
def test_what_is_not_known_is_an_error_that_names_it(tmp_path: Path, files: dict, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_sentence_config(_write(tmp_path, files))


def test_long_texts_are_cut_before_their_last_special_id() -> None:
    assert shortened([1, 5, 6, 7, 2], 4, 1) == [1, 5, 6, 2]
    assert shortened([1, 5, 6, 2], 4, 1) == [1, 5, 6, 2]
    assert shortened([1, 5, 6, 7], 2, 0) == [1, 5]
