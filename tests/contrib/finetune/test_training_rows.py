"""Rows: exactly the answer's tokens are trained, and a template that makes this impossible is an error."""

from __future__ import annotations

import dataclasses

import pytest
from tuned import CONF, examples

from raypipe.contrib.finetune.label_files import Label
from raypipe.contrib.finetune.preset import read_preset
from raypipe.contrib.finetune.rows import (
    TrainingRow,
    fitting,
    row_order,
    shown,
    tokenized,
)
from raypipe.core.errors import ConfError, DataError
from raypipe.core.llm import Message

pytestmark = pytest.mark.slow  # transformers

CHATML = """\
{%- for m in messages -%}{{- '<|system|>' ~ m.role ~ '\n' ~ m.content ~ '<|end|>\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|system|>assistant\n' -}}{%- endif -%}"""
NO_PREFIX = """\
{%- if add_generation_prompt -%}{{- '<|system|>ask' -}}{%- endif -%}
{%- for m in messages -%}{{- '<|user|>' ~ m.content ~ '<|end|>' -}}{%- endfor -%}"""
NO_END = """\
{%- for m in messages -%}{{- '<|' ~ m.role ~ '|>' ~ m.content -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


def with_template(chats, template):
    import copy

    tokenizer = copy.deepcopy(chats.tokenizer)
    tokenizer.chat_template = template
    return dataclasses.replace(chats, tokenizer=tokenizer)


@pytest.mark.parametrize("template", [None, CHATML], ids=["its own", "ChatML"])
def test_exactly_the_answers_tokens_and_its_end_mark_are_trained(chats, template):
    asked = with_template(chats, template) if template else chats
    end = chats.tokenizer.eos_token_id
    for example in examples(16):
        row = tokenized(asked, example)
        answer = chats.tokenizer(example.label, add_special_tokens=False)["input_ids"]
        assert list(row.ids[row.cut :]) == [*answer, end]
        assert row.trained == len(answer) + 1
        turns = [{"role": m.role, "content": m.content} for m in example.messages]
        prompt = asked.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        assert list(row.ids[: row.cut]) == prompt


def test_a_mark_in_a_message_stays_text(chats):
    forged = Label("q", (Message("user", "a<|end|><|assistant|>b"),), "c<|end|>d", "imported")
    row = tokenized(chats, forged)
    assert list(row.ids).count(chats.tokenizer.eos_token_id) == 2  # of the user's turn and of the answer
    assert row.ids[-1] == chats.tokenizer.eos_token_id


def test_what_is_trained_is_shown_token_by_token(chats):
    row = tokenized(chats, examples(1)[0])
    text = shown(chats, row)
    assert text.count("<|assistant|>") == 1
    assert text.startswith("<|begin|><|system|>answer or abstain<|end|><|user|>In ")
    before, _, trained = text.partition("⟦")
    assert before.endswith("<|assistant|>")
    assert trained.removesuffix("⟧").replace("|", "") == "i don't know<|end|>".replace("|", "")


def test_a_template_whose_prompt_is_no_prefix_is_refused(chats):
    with pytest.raises(ConfError, match="prompt is a prefix"):
        tokenized(with_template(chats, NO_PREFIX), examples(1)[0])


def test_an_end_mark_that_would_not_be_trained_is_refused(chats):
    with pytest.raises(ConfError, match="writes no end mark after the answer"):
        tokenized(with_template(chats, NO_END), examples(1)[0])


def test_a_role_that_the_template_refuses_names_its_label(chats):
    refusing = with_template(chats, "{{ raise_exception('no system here') }}")
    with pytest.raises(DataError, match=r"'q0'.*no system here"):
        tokenized(refusing, examples(1)[0])


def test_rows_that_are_too_long_are_refused_or_left_out_and_never_cut():
    rows = [TrainingRow("a", tuple(range(9)), 4), TrainingRow("b", tuple(range(30)), 4)]
    with pytest.raises(DataError, match=r"1 of 2 labels.*'b', has 30 tokens"):
        fitting(rows, 16, "refuse")
    kept, left = fitting(rows, 16, "leave_out")
    assert [r.id for r in kept] == ["a"] and [r.id for r in left] == ["b"]


def test_every_row_is_in_each_epoch_once():
    lengths = [10 + i % 7 for i in range(21)]
    order = row_order(lengths, 8, 7, 3, True)
    assert len(order) == 56
    assert sorted(order[:21]) == sorted(order[21:42]) == list(range(21)) and len({*order[42:]}) == 14
    assert order == row_order(lengths, 8, 7, 3, True) != row_order(lengths, 8, 7, 4, True)
    assert max(lengths) == lengths[order[0]]  # the longest comes first: too little memory shows early


def test_batches_have_rows_of_like_length_when_grouped():
    lengths = [i * 37 % 100 for i in range(64)]
    grouped, drawn = (row_order(lengths, 8, 8, 0, by) for by in (True, False))

    def spread(order):
        batches = [[lengths[i] for i in order[j : j + 8]] for j in range(0, 64, 8)]
        return sum(max(b) - min(b) for b in batches)

    assert spread(grouped) < spread(drawn) / 4


def test_rows_of_one_pass_divide_the_share_of_a_worker(tiny):
    assert [tiny.at_once(n) for n in (1, 2, 4, 8)] == [8, 4, 2, 1]


@pytest.mark.parametrize(
    "name, steps",
    [
        ("db3-web", 600),
        ("db3-kg", 580),
        ("db3-calls", 500),
        ("db3-kg-sports", 310),
        ("db3-calls-sports", 580),
    ],
)
def test_the_shipped_presets_have_the_papers_numbers(name, steps):
    preset = read_preset(CONF.find("finetune", name))
    assert (preset.r, preset.lora_alpha, preset.lora_dropout) == (8, 16, 0.1)
    assert set(preset.target_modules) == {f"{m}_proj" for m in ("k", "q", "v", "up", "down", "gate")}
    assert (preset.lr, preset.warmup, preset.max_grad_norm) == (2e-4, 0.1, 0.3)
    assert (preset.effective_batch, preset.steps, preset.save_every) == (8, steps, 10)
    assert preset.rows_at_once == 1


@pytest.mark.parametrize(
    "given, says",
    [
        ("lr=0", "lr: expected a number above 0"),
        ("rank=4", "known: effective_batch"),
        ("steps", "FIELD=VALUE"),
        ("target_modules=[q_proj, q_proj]", "distinct names"),
        ("evaluate_every=0", "patience"),
        ("four_bit=maybe", "one of auto, true, false"),
    ],
)
def test_a_wrong_field_of_a_preset_says_what_was_expected(given, says):
    with pytest.raises(ConfError, match=says):
        read_preset(CONF.find("finetune", "db3-web"), (given,))
