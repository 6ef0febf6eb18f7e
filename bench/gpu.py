#!/usr/bin/env python3
"""Throughput of a chip with the models' real shapes: embed, rerank, generate, with random weights.

    python bench/gpu.py --out gpu.json                    # on a GPU: bge-base, bge-reranker-v2-m3, Llama-3-8B
    python bench/gpu.py --size toy --parts embed rerank   # anywhere, on tiny shapes: shows that it runs

For each: tokens a second, the share of the chip's own matrix rate (or, for decoding, of its memory bandwidth,
both measured here by a large product and a large copy), and the ratio of our seconds to those of the library
called directly (FlagEmbedding, vLLM). Weights do not change how long a product takes, so random ones will do.
Each part runs in a process of its own. `bench/figures/scale.py table --gpu` reads what --out writes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "figures"))
import torch
from engine import Run, chats, engine, peer, sentence, setup_of

from raypipe.contrib.world import standins
from raypipe.core.llm import Message, Sampling
from raypipe.core.protocols import Model, ModelKind
from raypipe.models import folder
from raypipe.models.load import Backend, EngineLimits, open_model

TRIES = 5  # of each timing; the best counts: what else runs on the machine only ever adds


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a transformer."""

    name: str  # the model that has it
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int

    def encoder_flops(self, tokens: int) -> float:
        """Flops of one token in a text of `tokens`: two for each weight of the layers, and attention."""
        weights = self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.inner)
        return 2.0 * weights + 4.0 * self.layers * tokens * self.hidden

    def decoder_weights(self) -> int:
        """Numbers that a decoder reads to write one token."""
        width = self.hidden // self.heads
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.kv_heads * width
        return self.layers * (attention + 3 * self.hidden * self.inner) + self.hidden * self.vocabulary


# Published configurations: config.json of each model.
REAL = {
    "embed": Shape("bge-base-en-v1.5", 768, 12, 12, 12, 3072, 30522),
    "rerank": Shape("bge-reranker-v2-m3", 1024, 24, 16, 16, 4096, 250002),
    "generate": Shape("Meta-Llama-3-8B-Instruct", 4096, 32, 32, 8, 14336, 128256),
}
TOY = {
    "embed": Shape("toy", 64, 2, 4, 4, 256, 4096),
    "rerank": Shape("toy", 64, 2, 4, 4, 256, 4096),
    "generate": Shape("toy", 192, 4, 6, 2, 512, 4096),
}
TEXTS = {"real": 4096, "toy": 256}  # to embed, and pairs to rerank
WORDS = 110  # of a text: about 700 characters, a chunk
TOKENS = {"real": (3000, 256), "toy": (200, 20)}  # words of a prompt, tokens of a reply
CHATS = {"real": 256, "toy": 8}


def best(work: Callable[[], Any], device: str) -> float:
    """Seconds of the fastest try, after one to warm up."""
    taken = []
    for _ in range(TRIES + 1):
        start = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


def chip(device: str) -> dict[str, Any]:
    """Name, matrix rate (flop/s, in the dtype that models compute in) and bandwidth (bytes/s) as measured."""
    side, size = (8192, 1 << 30) if device != "cpu" else (1024, 1 << 26)
    dtype = torch.float16 if device != "cpu" else torch.float32
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rate = 2 * side**3 / best(lambda: a @ b, device)
    moved = 2 * size / best(lambda: target.copy_(source), device)
    name = torch.cuda.get_device_name() if device != "cpu" else "CPU"
    return {"chip": name, "dtype": str(dtype), "flop_per_s": rate, "bytes_per_s": moved}


def encoder(part: str, shape: Shape, place: Path, device: str) -> Model:
    """A folder with an encoder of that shape and random weights, as the catalog would name it."""
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    made = standins.build(place, [sentence(random.Random(n)) for n in range(500)])
    path = made.embedder if part == "embed" else made.reranker
    config = BertConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, intermediate_size=shape.inner, num_labels=1,
    )  # fmt: skip
    dtype = torch.float16 if device != "cpu" else torch.float32
    network = BertModel if part == "embed" else BertForSequenceClassification
    network(config).to(dtype).save_pretrained(path)
    role: ModelKind
    role, loader = (
        ("embedder", "flagembedding") if part == "embed" else ("reranker", "flagembedding-reranker")
    )
    return Model(
        shape.name, role, loader, "", "", str(path), folder.identity(path, role),
        dtype=str(dtype).removeprefix("torch."), dim=shape.hidden if part == "embed" else 0,
        pooling="cls" if part == "embed" else "", max_tokens=512,
    )  # fmt: skip


def encode(part: str, shape: Shape, size: str, device: str) -> dict[str, Any]:
    """One encoder by our way and by the library's own class, over the same texts."""
    from FlagEmbedding import FlagModel, FlagReranker
    from transformers import AutoTokenizer

    rng = random.Random(0)
    texts = [" ".join(sentence(rng) for _ in range(WORDS // 8)) for _ in range(TEXTS[size])]
    pairs = [(sentence(rng), text) for text in texts]
    half = device != "cpu"
    with tempfile.TemporaryDirectory() as place:
        model = encoder(part, shape, Path(place), device)
        way: Backend = "flagembedding" if half else "transformers"
        lengths = [len(x) for x in AutoTokenizer.from_pretrained(model.path)(texts)["input_ids"]]
        if part == "embed":
            mine = open_model(model, way, device)
            theirs = FlagModel(model.path, use_fp16=half, devices=device, pooling_method="cls")
            ours = best(lambda: mine.embed(texts, "passage"), device)
            direct = best(lambda: theirs.encode(texts), device)
        else:
            scorer = open_model(model, way, device)
            plain = FlagReranker(model.path, use_fp16=half, devices=device)
            ours = best(lambda: scorer.score(pairs), device)
            direct = best(lambda: plain.compute_score(pairs), device)
    tokens = sum(lengths)
    flops = sum(n * shape.encoder_flops(n) for n in lengths)
    return {
        "model": shape.name, "texts": len(texts), "tokens_per_s": tokens / ours, "flop_per_s": flops / ours,
        "texts_per_s": len(texts) / ours, "ratio_to_library": ours / direct,
    }  # fmt: skip


def decoder(shape: Shape, place: Path, dtype: str) -> Path:
    """A folder with a Llama of that shape and random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = standins.build(place, [sentence(random.Random(n)) for n in range(500)])
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.inner,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        max_position_embeddings=8192, bos_token_id=standins.BEGIN, eos_token_id=standins.END,
        pad_token_id=standins.PAD,
    )  # fmt: skip
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(made.chat)
    return made.chat


def generate(shape: Shape, size: str, device: str, way: str) -> dict[str, Any]:
    """Prompts read and tokens written in a second, by our engine or by vLLM's own `LLM.chat`."""
    from transformers import AutoTokenizer

    dtype = "float16" if device != "cpu" else "float32"
    words, reply = TOKENS[size]
    with tempfile.TemporaryDirectory() as place:
        path = decoder(shape, Path(place), dtype)
        limits = EngineLimits("cuda" if device != "cpu" else "cpu")
        setup = setup_of(Path(path), 8192, dtype, limits)
        asked = chats(CHATS[size], CHATS[size])
        rng = random.Random(1)
        filler = [" ".join(sentence(rng) for _ in range(words // 8)) for _ in asked]
        asked = [
            (head, Message("user", f"{more}\n{tail.content}"))
            for (head, tail), more in zip(asked, filler, strict=True)
        ]
        tokenizer = AutoTokenizer.from_pretrained(path)
        prompt = sum(len(tokenizer(c[1].content)["input_ids"]) for c in asked)
        found = {}
        opened = {"ours": engine, "library": peer}[way]
        with opened(setup, Sampling(max_tokens=reply)) as say:
            say(asked[:2])
            run: Run = say(asked)
            found["seconds"] = run.seconds
            found["written"] = sum(map(len, run.said))
    # Every step of a batch reads all weights once.
    steps = found["written"] / len(asked)
    read = shape.decoder_weights() * (2 if device != "cpu" else 4) * steps
    return {
        "model": shape.name, "prompt_tokens": prompt, "written_tokens": found["written"],
        "tokens_per_s": (prompt + found["written"]) / found["seconds"], "seconds": found["seconds"],
        "flop_per_s": 2.0 * shape.decoder_weights() * (prompt + found["written"]) / found["seconds"],
        "bytes_per_s": read / found["seconds"],
    }  # fmt: skip


def one(args: argparse.Namespace) -> dict[str, Any]:
    """One part, in this process."""
    shapes = REAL if args.size == "real" else TOY
    if args.one == "chip":
        return chip(args.device)
    if args.one.startswith("generate"):
        return generate(shapes["generate"], args.size, args.device, args.one.partition(":")[2])
    return encode(args.one, shapes[args.one], args.size, args.device)


def apart(part: str, args: argparse.Namespace) -> dict[str, Any]:
    """One part in a process of its own, so that each finds the chip empty. Raises SystemExit if it fails."""
    command = [sys.executable, __file__, "--one", part, "--size", args.size, "--device", args.device]
    done = subprocess.run(command, capture_output=True, text=True)  # libraries fill stderr with bars
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise SystemExit(f"{done.stderr}\n{part} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    gpu = torch.cuda.is_available()
    parser.add_argument("--size", choices=("real", "toy"), default="real" if gpu else "toy")
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--parts", nargs="+", choices=("embed", "rerank", "generate"))
    parser.add_argument("--out", type=Path, help="JSON for bench/figures/scale.py; refused for toy shapes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print("RESULT " + json.dumps(one(args)), flush=True)
        return
    if args.out and args.size == "toy":
        raise SystemExit("--out: rates of toy shapes forecast nothing")
    measured = apart("chip", args)
    print(f"{datetime.date.today()}, {measured['chip']}: {measured['flop_per_s'] / 1e12:.2f} Tflop/s "
          f"({measured['dtype']}), {measured['bytes_per_s'] / 1e9:.0f} GB/s")  # fmt: skip
    rates: dict[str, Any] = {"chip": measured, "date": str(datetime.date.today())}
    for part in args.parts or ("embed", "rerank", "generate"):
        if part == "generate":
            found = apart("generate:ours", args)
            found["ratio_to_library"] = found["seconds"] / apart("generate:library", args)["seconds"]
            rates["prompt_tokens_per_gpu_s"] = found["tokens_per_s"]
            share = f", {found['bytes_per_s'] / measured['bytes_per_s']:.0%} of the bandwidth"
        else:
            found, share = apart(part, args), ""
            if part == "embed":
                rates["pages_per_gpu_s"] = found["tokens_per_s"] / 4700  # tokens of a real page
            else:
                rates["pairs_per_gpu_s"] = found["texts_per_s"]
        of_rate = found["flop_per_s"] / measured["flop_per_s"]
        speed = f"{found['tokens_per_s']:,.0f} tokens/s, {of_rate:.0%} of the matrix rate{share}"
        print(f"{part} ({found['model']}): {speed}, {found['ratio_to_library']:.2f} x the library's seconds")
    if args.out:
        args.out.write_text(json.dumps(rates, indent=1) + "\n")


if __name__ == "__main__":
    main()
