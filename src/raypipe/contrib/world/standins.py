"""Stand-ins: tiny models with random weights, on which any recipe runs on real engines, offline.

The models have learned nothing, and every token of a prompt changes the reply: the weights are drawn so wide
that 200 prompts get 200 replies. (A briefly trained model gives the same reply to all prompts, so equality
tests on it prove nothing.) The same texts and seed give the same files, byte for byte. Torch, tokenizers and
transformers are imported by the functions that write a model.
"""

from __future__ import annotations

import json
import shutil
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.core.errors import DataError

CONTEXT = 8192  # tokens that the chat model can hold, prompt and reply
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER = 4, 192, 6, 2, 32, 512
VOCABULARY = 4096  # tokens, at most; a byte-level tokenizer trained on little text has fewer
STD = 0.1  # of the chat model's weights; at the usual 0.02 all prompts get the same reply
LOGIT_STD = 0.25  # standard deviation of its output head's weights; gives logits near 3.5
ADAPTER_RANK = 8
ADAPTERS = ("alpha", "beta")

PAD, BEGIN, END, SYSTEM, USER, ASSISTANT = 0, 1, 2, 3, 4, 5
SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")

TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role not in ('system', 'user', 'assistant') -%}
{{- raise_exception('a role is system, user or assistant, not ' ~ message.role) -}}
{%- endif -%}
{{- '<|' ~ message.role ~ '|>' ~ message.content | trim ~ eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""

BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_HIDDEN, BERT_LAYERS, BERT_HEADS, BERT_CONTEXT = 64, 2, 4, 512


@dataclass(frozen=True, slots=True)
class Standins:
    chat: Path  # Llama shape, float32
    adapters: tuple[tuple[str, Path], ...]  # name, folder; LoRA for `chat`
    embedder: Path  # BERT shape, float32, vectors of BERT_HIDDEN numbers
    reranker: Path  # BERT shape, float32, one logit
    instructor: Path  # encoder of the T5 shape, float32, vectors of BERT_HIDDEN numbers
    decoder: Path  # `chat`, with a tokenizer that ends every text: for vectors of the last token


def build(folder: Path, texts: Sequence[str], seed: int = 0, trainable: bool = False) -> Standins:
    """Writes all models under `folder`. `texts` train the tokenizers and should resemble the models' later
    input; a few hundred sentences are enough. `trainable`: as in `build_chat`. Raises DataError if all texts
    are blank."""
    if not any(text.strip() for text in texts):
        raise DataError(f"stand-ins in {folder}: expected texts to train tokenizers on, found none")
    adapters = tuple((name, folder / f"chat-{name}") for name in ADAPTERS)
    others = (folder / name for name in ("embedder", "reranker", "instructor", "decoder"))
    made = Standins(folder / "chat", adapters, *others)
    build_chat(made.chat, texts, seed, trainable)
    for i, (_, path) in enumerate(adapters):
        _adapter(path, seed + 1 + i)
    _bert(made.embedder, texts, seed, head=False)
    _bert(made.reranker, texts, seed, head=True)
    _t5(made.instructor, texts, seed)
    shutil.copytree(made.chat, made.decoder, dirs_exist_ok=True)
    said = made.decoder / "tokenizer_config.json"
    said.write_text(json.dumps({**json.loads(said.read_text()), "add_eos_token": True}, indent=2) + "\n")
    return made


def build_chat(folder: Path, texts: Iterable[str], seed: int = 0, trainable: bool = False) -> None:
    """Writes a chat model. `trainable`: the model can learn to end its replies, because the output weights of
    its end mark are random like those of any token. LoRA on other layers cannot raise a logit of 0."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size = _save_chat_tokenizer(folder, texts)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=PAD,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = LlamaForCausalLM(config)
    _draw(model, STD, seed)
    with torch.no_grad():
        head = model.lm_head.weight
        head.mul_(LOGIT_STD / STD)
        # Special tokens get logit 0 and the best of thousands gets 12, so none is sampled. A reply ends at
        # max_tokens, a stop text or its constraint's end. A random model with an end mark sometimes writes
        # nothing.
        drawn = head[END].clone()
        head[: len(SPECIAL)] = 0
        if trainable:
            head[END] = drawn
    _save(model, folder)


def _draw(model: Any, std: float, seed: int) -> None:
    """Fills every weight matrix from one seeded random stream, in the order of the matrices' names."""
    import torch

    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=stream) * std)


def _save(model: Any, folder: Path) -> None:
    """Writes config.json and model.safetensors, without the progress bar of `save_pretrained`."""
    from safetensors.torch import save_file

    model.config.architectures = [type(model).__name__]
    model.config.dtype = model.dtype
    model.config.save_pretrained(folder)
    first: dict[int, str] = {}  # address of a weight -> its first name: T5 lists its embeddings twice
    own = {n: w for n, w in model.state_dict().items() if first.setdefault(w.data_ptr(), n) == n}
    save_file(own, folder / "model.safetensors", metadata={"format": "pt"})


def _save_chat_tokenizer(folder: Path, texts: Iterable[str]) -> int:
    """Writes a byte-level BPE tokenizer and returns its vocabulary's size. Every string has tokens, so
    constrained decoding can spell anything."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[BEGIN],
        eos_token=SPECIAL[END],
        pad_token=SPECIAL[PAD],
        additional_special_tokens=list(SPECIAL[SYSTEM:]),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    size: int = tokenizer.get_vocab_size()
    return size


def _adapter(folder: Path, seed: int) -> None:
    """Writes LoRA weights for the four attention matrices, in PEFT's format. Both factors are random. PEFT
    starts the second factor at 0, and such an adapter changes nothing."""
    import torch
    from safetensors.torch import save_file

    stream = torch.Generator().manual_seed(seed)
    shapes = {  # name -> (inputs, outputs)
        "q_proj": (HIDDEN, HEADS * HEAD_DIM),
        "k_proj": (HIDDEN, KV_HEADS * HEAD_DIM),
        "v_proj": (HIDDEN, KV_HEADS * HEAD_DIM),
        "o_proj": (HEADS * HEAD_DIM, HIDDEN),
    }
    tensors = {}
    for layer in range(LAYERS):
        for name, (inputs, outputs) in shapes.items():
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            a = torch.randn(ADAPTER_RANK, inputs, generator=stream) * STD
            b = torch.randn(outputs, ADAPTER_RANK, generator=stream) * STD
            tensors[f"{key}.lora_A.weight"] = a
            tensors[f"{key}.lora_B.weight"] = b
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "../chat",
        "r": ADAPTER_RANK,
        "lora_alpha": 4 * ADAPTER_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(shapes),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _bert(folder: Path, texts: Iterable[str], seed: int, head: bool) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    config = BertConfig(
        vocab_size=save_bert_tokenizer(folder, texts),
        hidden_size=BERT_HIDDEN,
        num_hidden_layers=BERT_LAYERS,
        num_attention_heads=BERT_HEADS,
        intermediate_size=4 * BERT_HIDDEN,
        max_position_embeddings=BERT_CONTEXT,
        num_labels=1,
        pad_token_id=0,
    )
    model = BertForSequenceClassification(config) if head else BertModel(config)
    _draw(model, 2 * STD, seed + 10 + head)
    _save(model, folder)


def _t5(folder: Path, texts: Iterable[str], seed: int) -> None:
    """Writes a T5 encoder as a sentence-transformers folder with a dense layer on the mean. Its positions are
    relative, so texts may have any length."""
    import torch
    from safetensors.torch import save_file
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=save_bert_tokenizer(folder, texts),
        d_model=BERT_HIDDEN,
        d_kv=BERT_HIDDEN // BERT_HEADS,
        d_ff=4 * BERT_HIDDEN,
        num_layers=BERT_LAYERS,
        num_heads=BERT_HEADS,
        pad_token_id=0,
    )
    model = T5EncoderModel(config)
    _draw(model, 2 * STD, seed + 20)
    _save(model, folder)
    pooling = {"word_embedding_dimension": BERT_HIDDEN, "pooling_mode_mean_tokens": True}
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ]
    dense = {
        "in_features": BERT_HIDDEN,
        "out_features": BERT_HIDDEN,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    for module in ("1_Pooling", "2_Dense"):
        (folder / module).mkdir(exist_ok=True)
    layer = torch.nn.Linear(BERT_HIDDEN, BERT_HIDDEN, bias=False)
    _draw(layer, 2 * STD, seed + 21)
    weights = {f"linear.{name}": w for name, w in layer.state_dict().items()}
    save_file(weights, folder / "2_Dense/model.safetensors", metadata={"format": "pt"})
    for name, tree in (
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling),
        ("2_Dense/config.json", dense),
        ("sentence_bert_config.json", {"max_seq_length": BERT_CONTEXT}),
    ):
        (folder / name).write_text(json.dumps(tree, indent=2) + "\n")


def save_bert_tokenizer(folder: Path, texts: Iterable[str]) -> int:
    """Writes a WordPiece tokenizer of all characters and the most frequent words. Returns the vocabulary's
    size. The library's own trainer numbers the pieces in another order in each run."""
    from tokenizers import normalizers, pre_tokenizers
    from transformers import BertTokenizer

    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    plain = string.ascii_lowercase + string.digits + string.punctuation
    characters = sorted({c for word in counts for c in word} | set(plain))
    pieces = [*BERT_SPECIAL, *characters, *(f"##{c}" for c in characters)]
    words = sorted((w for w in counts if len(w) > 1), key=lambda w: (-counts[w], w))
    pieces += words[: max(0, VOCABULARY - len(pieces))]
    numbers = {piece: i for i, piece in enumerate(pieces)}
    BertTokenizer(vocab=numbers, model_max_length=BERT_CONTEXT).save_pretrained(folder)
    return len(pieces)
