"""Tiny models of the two shapes, built here: seeded random weights, tokenizers trained on the text below.

Weights are drawn wide, so that different texts get clearly different vectors and scores.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from raypipe.models import catalog
from raypipe.models.catalog import Catalog

TEXTS = [
    "The lighthouse keeper wrote down every ship that passed the northern cape.",
    "Rye bread keeps longer than wheat bread, said the baker of the old town.",
    "In the second season the series moved to a harbour city and lost its narrator.",
    "Shares of the glass maker fell 4.2% after the furnace was closed for repairs.",
    "Who scored the winning goal in the cup final of 1987?",
    "A comet, once every seventy-five years; a tide, twice a day.",
    "Das Museum öffnet um zehn Uhr, außer montags.",
    "The committee voted 7 to 2; nobody had expected it.",
    "No.",
]


def _save_bert_tokenizer(folder: Path) -> int:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    from transformers import BertTokenizer

    BertTokenizer(vocab=tokenizer.get_vocab()).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def _save_xlmr_tokenizer(folder: Path) -> int:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=260, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def build_model(folder: Path, shape: str, head: bool, seed: int = 0) -> Path:
    """A folder with a tiny BERT or XLM-R; `head` puts one logit on it."""
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertModel,
        XLMRobertaConfig,
        XLMRobertaForSequenceClassification,
        XLMRobertaModel,
    )

    folder.mkdir(parents=True)
    size: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "initializer_range": 0.3,
        "num_labels": 1,
    }
    torch.manual_seed(seed)
    if shape == "bert":
        config = BertConfig(vocab_size=_save_bert_tokenizer(folder), max_position_embeddings=64, **size)
        net = (BertForSequenceClassification if head else BertModel)(config)
    else:
        vocabulary = _save_xlmr_tokenizer(folder)
        config = XLMRobertaConfig(
            vocab_size=vocabulary, max_position_embeddings=66, type_vocab_size=1, **size
        )
        net = (XLMRobertaForSequenceClassification if head else XLMRobertaModel)(config)
    net.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """shape, head -> the folder of a tiny model, built once."""
    root = tmp_path_factory.mktemp("tiny")

    def folder(shape: str, head: bool) -> Path:
        path = root / f"{shape}-{'head' if head else 'body'}"
        return path if path.exists() else build_model(path, shape, head)

    return folder


@pytest.fixture
def texts() -> list[str]:
    return list(TEXTS)


@pytest.fixture
def entries(tmp_path: Path) -> Callable[..., Catalog]:
    """name=entry -> a catalog of those entries; its models.yaml and an empty hub cache lie in tmp_path."""

    def read(**tree: dict[str, Any]) -> Catalog:
        return catalog.read(tree, tmp_path / "models.yaml", hub=tmp_path / "hub")

    return read
