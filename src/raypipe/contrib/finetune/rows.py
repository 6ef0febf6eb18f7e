"""Training rows: chat and answer as token ids, the index where the answer begins, and the rows' order.

The prompt's ids equal those that an engine computes: same template, same treatment of special tokens. The
trained tokens begin where the template lets the model reply, and end with the first end mark. A template that
makes this impossible is an error, never a warning.

The rows of each step are chosen before the training, from lengths, batch size, steps and seed. They do not
depend on the number of workers. The length-grouping sampler of transformers is not used: it draws from
torch's global generator, whose numbers differ between workers and after a restart.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raypipe.contrib.finetune.label_files import Label
from raypipe.core.errors import ConfError, DataError, unstopped
from raypipe.models.folder import json_object
from raypipe.models.generator_files import escape_marks, marks_of


@dataclass(frozen=True, slots=True)
class TrainingRow:
    id: str
    ids: tuple[int, ...]  # prompt, answer and end mark
    cut: int  # index of the answer's first token; the prompt's length

    @property
    def trained(self) -> int:
        """Number of tokens in the loss: the answer and its end mark."""
        return len(self.ids) - self.cut


@dataclass(frozen=True, slots=True)
class ChatTokenizer:
    name: str  # of the model, for error messages
    tokenizer: Any  # of transformers
    marks: re.Pattern[str]  # special tokens, which are escaped in messages
    ends: frozenset[int]  # ids that end a reply in an engine
    template: Mapping[str, Any]  # arguments of the chat template


def open_chat_tokenizer(folder: Path, name: str, template: str = "") -> ChatTokenizer:
    """Opens the tokenizer in a model's folder. `template`: arguments of its chat template, as JSON. Raises
    ConfError if it cannot be read, has no chat template, or names no end mark."""
    from transformers import AutoTokenizer  # takes five seconds; a plan from a cached count avoids it

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as e:  # the tokenizers library raises plain Exception
        raise ConfError(
            f"model {name!r}: the tokenizer in {folder} cannot be read: {unstopped(e)}. "
            "Fetch the folder again"
        ) from e
    if not tokenizer.chat_template:
        raise ConfError(
            f"model {name!r}: {folder} has no chat template, so the form of its prompts is unknown. Use the "
            "model's chat or instruct version, or put the template of its family in chat_template.jinja"
        )
    ids = [tokenizer.eos_token_id]
    for path in (folder / "generation_config.json", folder / "config.json"):
        named = json_object(path).get("eos_token_id") if path.is_file() else None
        ids += named if isinstance(named, list) else [named]
    if not (ends := frozenset(i for i in ids if isinstance(i, int))):
        raise ConfError(
            f"model {name!r}: {folder} names no end mark (eos_token) to learn. Fetch the folder again"
        )
    return ChatTokenizer(name, tokenizer, marks_of(tokenizer), ends, json.loads(template or "{}"))


def tokenized(chats: ChatTokenizer, label: Label) -> TrainingRow:
    """Tokenizes the chat and the answer of a label. Raises DataError if the template refuses the chat. Raises
    ConfError if the prompt is not a prefix of the whole chat, and if no end mark follows the answer."""
    answer = escape_marks(chats.marks, label.label).strip()
    where = f"label {label.question_id!r}: the chat template of model {chats.name!r}"
    turns = [{"role": m.role, "content": escape_marks(chats.marks, m.content)} for m in label.messages]
    try:
        prompt = _rendered(chats, turns, begins=True)
        whole = _rendered(chats, [*turns, {"role": "assistant", "content": answer}], begins=False)
    except Exception as e:  # jinja2's errors, or any that a template raises
        raise DataError(f"{where} refuses this chat: {e}") from e
    cut = len(prompt)
    if whole[:cut] != prompt:
        pairs = enumerate(zip(prompt, whole, strict=False))
        differs = next((i for i, (a, b) in pairs if a != b), min(cut, len(whole)))
        raise ConfError(
            f"{where} begins a chat differently with and without its answer (first difference at token "
            f"{differs} of {cut}). Use a template whose prompt is a prefix of the whole chat"
        )
    end = next((i for i in range(cut, len(whole)) if whole[i] in chats.ends), None)
    if end is None:
        raise ConfError(
            f"{where} writes no end mark after the answer (ids {sorted(chats.ends)}). Put one in it, or name "
            "the mark that it writes as eos_token_id in generation_config.json"
        )
    return TrainingRow(label.question_id, tuple(whole[: end + 1]), cut)


def _rendered(chats: ChatTokenizer, turns: Sequence[Mapping[str, str]], begins: bool) -> list[int]:
    ids: list[int] = chats.tokenizer.apply_chat_template(
        list(turns), tokenize=True, add_generation_prompt=begins, return_dict=False, **chats.template
    )
    return ids


def fitting(
    rows: Iterable[TrainingRow], max_seq_len: int, too_long: Literal["refuse", "leave_out"]
) -> tuple[list[TrainingRow], list[TrainingRow]]:
    """Returns the rows that fit, and the longer rows, which are left out. Raises DataError if `too_long`
    forbids that, or if no row fits. Rows are not cut, because that would cut their answers."""
    rows = list(rows)
    longer = [row for row in rows if len(row.ids) > max_seq_len]
    if longer and (too_long == "refuse" or len(longer) == len(rows)):
        most = max(longer, key=lambda row: len(row.ids))
        raise DataError(
            f"{len(longer)} of {len(rows)} labels are longer than max_seq_len {max_seq_len}; the longest, "
            f"{most.id!r}, has {len(most.ids)} tokens. Raise max_seq_len if memory allows, give the recipe "
            "of the labels a smaller context_tokens, or train without them: --set too_long=leave_out"
        )
    return [row for row in rows if len(row.ids) <= max_seq_len], longer


def shown(chats: ChatTokenizer, row: TrainingRow) -> str:
    """Returns a row as text. ⟦ ⟧ encloses its trained tokens, split by |."""
    pieces = [chats.tokenizer.decode([i]) for i in row.ids[row.cut :]]
    return f"{chats.tokenizer.decode(list(row.ids[: row.cut]))}⟦{'|'.join(pieces)}⟧"


MEGA = 50
"""Number of batches whose rows are sorted by length together, as in transformers' LengthGroupedSampler."""


def row_order(lengths: Sequence[int], batch: int, steps: int, seed: int, grouped: bool) -> list[int]:
    """Returns row numbers for all steps, `batch` per step. Each epoch has each row once.

    >>> row_order([5, 9, 7], 2, 3, 0, False)
    [0, 2, 1, 0, 1, 2]
    """
    made: list[int] = []
    for epoch in range(math.ceil(steps * batch / len(lengths))):
        draw = random.Random(f"{seed}/{epoch}")
        order = list(range(len(lengths)))
        draw.shuffle(order)
        made += _grouped(lengths, order, batch, draw) if grouped else order
    return made[: steps * batch]


def _grouped(lengths: Sequence[int], order: Sequence[int], size: int, draw: random.Random) -> list[int]:
    """Puts rows of similar length into one batch. The longest come first, so missing memory shows early."""
    cut: list[list[int]] = []
    for i in range(0, len(order), MEGA * size):
        mega = sorted(order[i : i + MEGA * size], key=lambda row: -lengths[row])  # ties stay as drawn
        cut += [mega[j : j + size] for j in range(0, len(mega), size)]
    head, rest = cut[0], cut[1:]
    draw.shuffle(rest)
    return [*head, *(row for group in rest for row in group)]
