"""Embeddings against sentence-transformers: every pooling mode, Dense, Normalize, on a tiny random BERT."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from tests.pipelines.engine import rows_ops
from vivace.engine.batch import Batch, Event, Span
from vivace.models.base import Encoder
from vivace.models.load import load_model
from vivace.pipelines.embed import EmbedPipeline
from vivace.pipelines.pooling import load_dense
from vivace.pipelines.requests import EmbedRequest, Reply, Vector
from vivace.pipelines.sentence import read_sentence_config, shortened

TEXTS = ["red fox", "a blue cat lived in the garden", "the end", "fox fox fox the red cat in the garden end blue a"]
TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] a blue cat lived in the garden red fox end"
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
MAX_LENGTH = 9  # the last text is longer

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with every parameter drawn anew, wide enough that all of them matter."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text(TOKENS.replace(" ", "\n"))
    transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(TOKENS.split()),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    model = transformers.BertModel(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


def _save(bert: Path, folder: Path, *, mode: Any, has_dense: bool = False, has_normalize: bool = False) -> np.ndarray:
    """Save a sentence-transformers folder; return what the library itself says to the texts."""
    library = pytest.importorskip("sentence_transformers")
    models = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    transformer = models.Transformer(str(bert), max_seq_length=MAX_LENGTH)
    modules = [transformer, models.Pooling(16, pooling_mode=mode)]
    if has_dense:
        torch.manual_seed(1)
        modules.append(models.Dense(modules[-1].pooling_output_dimension, 6))
    if has_normalize:
        modules.append(models.Normalize())
    model = library.SentenceTransformer(modules=modules, device="cpu")
    model.save(str(folder))
    return np.stack([model.encode(text) for text in TEXTS])


def _ours(folder: Path) -> np.ndarray:
    sentence = read_sentence_config(folder)
    model = load_model(folder, rows_ops())
    assert isinstance(model, Encoder)
    dense = load_dense(sentence, rows_ops())
    pipeline = EmbedPipeline(model, rows_ops(), name="embed", sentence=sentence, dense=dense)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    assert sentence.max_length == MAX_LENGTH
    replies: list[Reply] = []
    jobs = []
    for number, text in enumerate(TEXTS):
        ids = shortened(tokenizer.encode(text).ids, sentence.max_length, num_suffix=1)
        jobs.append(pipeline.make_job(EmbedRequest(tuple(ids)), number, replies.append))
    batch = Batch("embed", tuple(Span(job, 0, job.goal) for job in jobs))
    for job, outcome in zip(jobs, pipeline.launch(batch).outcomes(), strict=True):
        job.sink(Event(job, outcome.output, outcome.finished))
    vectors = [reply.output for reply in replies]
    return np.stack([np.frombuffer(vector.data, "<f4") for vector in vectors if isinstance(vector, Vector)])


@pytest.mark.parametrize("mode", [*MODES, ("cls", "mean"), ("weightedmean", "max", "lasttoken")], ids=str)
def test_every_mode_equals_the_library(bert: Path, tmp_path: Path, mode: Any) -> None:
    # float32 sums of 16 numbers over two layers in another order: a few units in the last place
    assert _difference(bert, tmp_path, mode=mode) < 2e-5


@pytest.mark.parametrize("has_normalize", [False, True])
def test_dense_and_normalize_equal_the_library(bert: Path, tmp_path: Path, has_normalize: bool) -> None:
    assert _difference(bert, tmp_path, mode="mean", has_dense=True, has_normalize=has_normalize) < 2e-5


def _difference(bert: Path, folder: Path, **options: Any) -> float:
    """The largest difference between our vectors and the library's."""
    expected = _save(bert, folder, **options)
    ours = _ours(folder)
    assert ours.shape == expected.shape
    assert np.ptp(expected, axis=0).max() > 0.1, "the texts must differ, else the comparison is blind"
    return float(np.abs(ours - expected).max())
