"""Chips by their makers' figures; models of real shape with random weights, and texts for them, for gpu.py.

Imports torch and transformers when a model is made, and nothing else that is not in Python.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.contrib.world import standins
from raypipe.core.protocols import Model
from raypipe.models import folder

MAX_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Chip:
    """A maker's figures of one chip."""

    named: str  # stands in the name that torch gives it
    flop_per_s: float  # dense, float16 with sums in float32
    bytes_per_s: float
    source: str


# A data sheet's figure "with sparsity" is halved. The first name that fits counts.
CHIPS = (
    Chip("H200 NVL", 835.5e12, 4.8e12, "NVIDIA's H200 data sheet"),
    Chip("H200", 989.5e12, 4.8e12, "NVIDIA's H200 data sheet"),
    Chip("H100 NVL", 835.5e12, 3.9e12, "NVIDIA's H100 data sheet"),
    Chip("H100 PCIe", 756.5e12, 2.0e12, "NVIDIA's H100 data sheet"),
    Chip("H100", 989.5e12, 3.35e12, "NVIDIA's H100 data sheet, SXM"),
    Chip("A100-PCIE-40GB", 312e12, 1.555e12, "NVIDIA's A100 data sheet"),
    Chip("A100-SXM4-40GB", 312e12, 1.555e12, "NVIDIA's A100 data sheet"),
    Chip("A100 80GB PCIe", 312e12, 1.935e12, "NVIDIA's A100 data sheet"),
    Chip("A100", 312e12, 2.039e12, "NVIDIA's A100 data sheet, 80 GB SXM"),
    Chip("L40S", 362e12, 0.864e12, "NVIDIA's L40S data sheet"),
    Chip("L4", 121e12, 0.3e12, "NVIDIA's L4 data sheet"),
    Chip("T4", 65e12, 0.32e12, "NVIDIA's T4 data sheet"),
)


def by_maker(name: str) -> Chip | None:
    """Returns the figures of a chip by its name; None: they are not in the list.

    >>> by_maker("NVIDIA H100 80GB HBM3").source, by_maker("CPU")
    ("NVIDIA's H100 data sheet, SXM", None)
    """
    return next((chip for chip in CHIPS if chip.named in name), None)


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a transformer, as the config.json of the model of that name says it."""

    name: str
    family: str  # bert | xlm-roberta | llama
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    pooling: str = ""  # of an embedder

    def encoder_flops(self, tokens: int) -> float:
        """Flops of one text: two for each token and weight of the layers, and attention."""
        weights = self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.inner)
        return tokens * (2.0 * weights + 4.0 * self.layers * tokens * self.hidden)

    def decoder_weights(self) -> int:
        """Numbers that a decoder reads to write one token."""
        width = self.hidden // self.heads
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.kv_heads * width
        return self.layers * (attention + 3 * self.hidden * self.inner) + self.hidden * self.vocabulary

    def tiny(self) -> Shape:
        """Returns a shape of the same kind for any machine."""
        name = f"{self.name} (tiny)"
        if self.family == "llama":
            return Shape(name, self.family, 192, 4, 6, 2, 512, 4096)
        return Shape(name, self.family, 64, 2, 4, 4, 256, 4096, self.pooling)


MINILM = Shape("all-MiniLM-L6-v2", "bert", 384, 6, 12, 12, 1536, 30522, "mean")
BGE = Shape("bge-base-en-v1.5", "bert", 768, 12, 12, 12, 3072, 30522, "cls")
RERANKER = Shape("bge-reranker-v2-m3", "xlm-roberta", 1024, 24, 16, 16, 4096, 250002)
LLAMA = Shape("Meta-Llama-3-8B-Instruct", "llama", 4096, 32, 32, 8, 14336, 128256)
PARTS = {"embed": (BGE, MINILM), "rerank": (RERANKER,), "pool": (MINILM, BGE), "engine": (LLAMA,)}

WORDS = """
    water river report season market engine village council garden station method result sample letter
    winter harvest office budget member question answer library passage document ranking author evidence
    copper valley harbor island bridge mountain doctor teacher student company product record film music
    player team game street museum castle church school science history language number year month the of a
    to and in for with on that was is by from as at it were which this are be has had its not but also more
""".split()  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class Load:
    """How much is computed."""

    texts: int  # to embed; a fourth as many pairs to rerank
    tasks: int  # of the stream
    task_texts: int
    batches: tuple[int, ...]  # sizes that the library may take; 32 is its default
    processes: tuple[int, ...]  # of the library's pool
    chats: int
    prompt_words: int
    reply_tokens: int
    timing_s: float  # of one timing: a part has eight at most, and loads two models


LOADS = {  # real: a second or more of an H100
    "real": Load(16_384, 32, 512, (32, 256, 1024), (4,), 256, 3000, 256, 40.0),
    "toy": Load(96, 3, 32, (32,), (1,), 8, 200, 20, 1.0),
}


def prose(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def texts_of(count: int, least: int, most: int, seed: int) -> list[str]:
    """Texts of `least` to `most` words, no two alike."""
    draw = random.Random(seed)
    return [f"{n} {prose(draw, draw.randint(least, most))}" for n in range(count)]


def stream(load: Load) -> list[list[str]]:
    """Tasks of ragged texts, as the sentences, cells and paragraphs of pages are: half of them have less than
    35 words, a tenth more than 105."""
    draw = random.Random(2)
    sizes = (int(min(380, max(3, draw.lognormvariate(3.5, 0.9)))) for _ in iter(int, 1))
    return [
        [f"{t} {n} {prose(draw, next(sizes))}" for n in range(load.task_texts)] for t in range(load.tasks)
    ]


def encoder(shape: Shape, models: Path, device: str) -> Model:
    """The entry of a model in its folder below `models`, which is made where there is none."""
    path, embeds = models / shape.name, bool(shape.pooling)
    if not (path / "config.json").is_file():
        _build_encoder(shape, path, device)
    role, loader = ("embedder", "flagembedding") if embeds else ("reranker", "flagembedding-reranker")
    return Model(
        shape.name,
        role,  # type: ignore[arg-type]
        loader,
        "",
        "",
        str(path),
        folder.identity(path, role),
        dtype="float16" if device != "cpu" else "float32",
        dim=shape.hidden if embeds else 0,
        pooling=shape.pooling,
        max_tokens=MAX_TOKENS,
    )


def decoder(shape: Shape, models: Path, device: str) -> Path:
    """The folder of a chat model below `models`, which is made where there is none."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    path = models / shape.name
    if not (path / "config.json").is_file():
        standins.build_chat(path, WORDS)
        config = LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=standins.CONTEXT,
            bos_token_id=standins.BEGIN,
            eos_token_id=standins.END,
            pad_token_id=standins.PAD,
        )
        _save(LlamaForCausalLM, config, path, device)
    if device != "cpu":
        torch.cuda.empty_cache()
    return path


def _save(network: Any, config: Any, path: Path, device: str) -> None:
    """Writes random weights, which are drawn on the device: a CPU takes minutes for billions."""
    import torch

    with torch.device(device):
        net = network(config)
    net.to(torch.float16 if device != "cpu" else torch.float32).save_pretrained(path)


def _build_encoder(shape: Shape, path: Path, device: str) -> None:
    """Writes a folder with an encoder of that shape, as sentence-transformers has it."""
    import transformers as t

    path.mkdir(parents=True, exist_ok=True)
    of: dict[str, Any] = {"vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "num_labels": 1}
    of |= {"num_hidden_layers": shape.layers, "num_attention_heads": shape.heads}
    of |= {"intermediate_size": shape.inner}
    if shape.family == "xlm-roberta":
        _save_sentence_pieces(path)
        config = t.XLMRobertaConfig(
            **of, max_position_embeddings=8194, type_vocab_size=1, layer_norm_eps=1e-5
        )
        _save(t.XLMRobertaForSequenceClassification, config, path, device)
        return
    standins.save_bert_tokenizer(path, WORDS)
    _save(t.BertModel, t.BertConfig(**of), path, device)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (place, kind) in enumerate(kinds)
    ]
    ways = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    pooling = {name: way == shape.pooling for way, name in ways.items()}
    (path / "1_Pooling").mkdir(exist_ok=True)
    for name, tree in (
        ("modules.json", modules),
        ("1_Pooling/config.json", {"word_embedding_dimension": shape.hidden, **pooling}),
        ("sentence_bert_config.json", {"max_seq_length": MAX_TOKENS}),
    ):
        (path / name).write_text(json.dumps(tree) + "\n")


def _save_sentence_pieces(path: Path) -> None:
    """Writes a tokenizer in the form of XLM-R's, over these words and their letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted({c for word in WORDS for c in word} | set("0123456789"))
    words = [f"\u2581{word}" for word in dict.fromkeys(WORDS)]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *words, "\u2581", *letters]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(n)) for n, piece in enumerate(pieces)], unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        model_max_length=8192,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(path)
