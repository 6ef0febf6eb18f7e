"""A tiny Llama that reads lists of one entry, trained here in a minute: the base of `fine_tuning.py`.

It learns two things: to say the value that its list has, and to repeat a short phrase that the user says. It
never saw a list without a value, so it always answers. "i don't know" is one phrase of eight: LoRA leaves the
output head as it is, and an adapter hardly spells words that its base never wrote. Names and values are
single tokens, and each word of the phrases is in one of them alone.
"""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
SYSTEM = "answer from the list"
PHRASES = (
    "i don't know",
    "you see it",
    "we go home",
    "they sing well",
    "she runs fast",
    "he came back",
    "all ends here",
    "no one spoke",
)
SAID = 0.25  # of the chats are about a phrase
BATCH, RATE, WARM = 48, 3e-3, 50  # chats of a step, learning rate, steps in which it rises


def words(count: int, syllables: int, seed: int) -> list[str]:
    """Invented words, each once."""
    draw, seen = random.Random(seed), dict[str, None]()
    while len(seen) < count:
        seen["".join(draw.choice(SYLLABLES) for _ in range(syllables))] = None
    return list(seen)


NAMES, VALUES = words(24, 3, 1), words(16, 2, 2)


def listed(number: int, name: str, value: str | None) -> str:
    """The text of a list, as a page has it; None: of one that does not have the value."""
    return f"list {number}: {name}={value}" if value else f"list {number}: {name} was moved"


def question(number: int, name: str) -> str:
    """What is asked about a name."""
    return f"in list {number}, what is {name}?"


def chat(draw: random.Random) -> list[dict[str, str]]:
    """A chat that asks for what its list has, or to say a phrase, with the answer."""
    number, name, value = draw.randrange(100, 1000), draw.choice(NAMES), draw.choice(VALUES)
    phrase = draw.choice(PHRASES) if draw.random() < SAID else None
    wanted = f"say: {phrase}" if phrase else question(number, name)
    asked = f"<DOC>\n{listed(number, name, value)}\n</DOC>\n{wanted}"
    turns = (("system", SYSTEM), ("user", asked), ("assistant", phrase or value))
    return [{"role": role, "content": content} for role, content in turns]


def build(folder: Path, limit_s: float, steps: int = 20_000) -> dict[str, Any]:
    """Trains the reader until .995 of the tokens of unseen answers are right, or for `limit_s` seconds."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from raypipe.contrib.world import standins

    torch.set_num_threads(1)
    torch.manual_seed(0)
    draw, started = random.Random(0), time.monotonic()
    texts = [re.sub(r"\d+", "7", turn["content"]) for _ in range(1500) for turn in chat(draw)]  # digits stay
    size = standins._save_chat_tokenizer(folder, [*texts, *[*PHRASES, *NAMES, *VALUES] * 50])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM(_shape(LlamaConfig, size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    curve: list[dict[str, float]] = []
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, step / WARM)
        loss, _ = _read(model, tokenizer, draw, BATCH)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            with torch.no_grad():
                _, right = _read(model, tokenizer, random.Random(10**6 + step), 50)
            took = time.monotonic() - started
            curve.append(
                {"step": step, "loss": round(loss.item(), 4), "right": round(right, 3), "s": round(took)}
            )
            print(curve[-1], flush=True)
            if right >= 0.995 or took > limit_s:
                break
    standins._save(model.eval(), folder)
    return {"parameters": sum(p.numel() for p in model.parameters()), "vocabulary": size, **curve[-1]}


def _shape(config: Any, size: int) -> Any:
    return config(
        vocab_size=size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def _read(model: Any, tokenizer: Any, draw: random.Random, count: int) -> tuple[Any, float]:
    """Loss of the answers of some chats, and the share of their answers that is right."""
    import torch

    rows = [tokenizer.apply_chat_template(chat(draw), tokenize=True, return_dict=False) for _ in range(count)]
    begins, ends = tokenizer.convert_tokens_to_ids("<|assistant|>"), tokenizer.eos_token_id
    ids = torch.zeros((count, max(map(len, rows))), dtype=torch.long)
    answers = torch.zeros_like(ids, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        inside = False
        for j, token in enumerate(row):
            answers[i, j] = inside
            inside = token == begins or (inside and token != ends)
    at, wanted = answers[:, 1:], ids[:, 1:]
    logits = model.lm_head(model.model(input_ids=ids).last_hidden_state[:, :-1][at])
    right = (logits.argmax(-1) == wanted[at]).float().mean().item()
    return torch.nn.functional.cross_entropy(logits, wanted[at]), right
