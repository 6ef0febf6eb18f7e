"""Both laws, for every step in the table; and no step reads what it did not declare."""

from collections.abc import Mapping
from dataclasses import fields, replace

import golden
import pyarrow as pa
import pytest

from raypipe.core import arrow
from raypipe.core.records import ANSWERED, Reply
from raypipe.recipes.recipe import CORPUS_STEPS, QUESTION_STEPS


@pytest.fixture(scope="module")
def links():
    return golden.chain()


def same(a: pa.Table, b: pa.Table) -> bool:
    return a.schema.equals(b.schema) and a.to_pylist() == b.to_pylist()


@pytest.mark.parametrize("verb", QUESTION_STEPS)
def test_the_same_questions_come_back_in_the_same_order(links, verb):
    link = links[verb]
    assert [q.id for q in link.out] == [q.id for q in link.given]
    backwards = golden.run(link.step, link.kit, link.given[::-1])
    assert backwards == link.out[::-1]


@pytest.mark.parametrize("verb", QUESTION_STEPS)
def test_a_question_step_changes_some_of_the_golden_rows_and_so_the_lock_can_see_it_move(links, verb):
    link = links[verb]
    assert link.out != link.given


def test_the_golden_rows_meet_both_rules_of_demote_and_one_answer_that_it_leaves(links):
    labels = [q.replies["said"].label for q in links["demote"].out]
    assert labels == ["abstained", "invalid", "answered", "skipped", "skipped"]


@pytest.mark.parametrize("verb", QUESTION_STEPS)
def test_a_question_step_does_not_notice_how_questions_are_batched(links, verb):
    link = links[verb]
    for cut in range(len(link.given) + 1):
        halves = [golden.run(link.step, link.kit, part) for part in (link.given[:cut], link.given[cut:])]
        assert halves[0] + halves[1] == link.out
    assert [golden.run(link.step, link.kit, [q])[0] for q in link.given] == link.out


@pytest.mark.parametrize("verb", QUESTION_STEPS)
def test_a_question_step_changes_only_what_it_declares_and_asks_the_same_of_equal_rows(links, verb):
    link = links[verb]
    writes = link.step.writes()
    for before, after in zip(link.given, link.out, strict=True):
        for f in fields(before):
            if f.name in ("faults", "replies", "hits", *(w.split(".")[0] for w in writes)):
                continue
            assert getattr(after, f.name) == getattr(before, f.name), f.name
        kept = {n for n in before.replies if f"replies.{n}" not in writes}
        assert {n: after.replies[n] for n in kept} == {n: before.replies[n] for n in kept}
    twice = golden.run(link.step, link.kit, [link.given[0], link.given[0]])
    assert twice[0] == twice[1] == link.out[0]


@pytest.mark.parametrize("verb", CORPUS_STEPS)
def test_every_output_row_of_a_corpus_step_names_its_input_row(links, verb):
    link = links[verb]
    given, out = link.given["source"].to_pylist(), link.out["source"].to_pylist()
    assert set(out) <= set(given)
    assert out == sorted(out, key=given.index), (
        "rows of one source stand together, in the order of the sources"
    )


@pytest.mark.parametrize("verb", CORPUS_STEPS)
def test_a_corpus_step_does_not_notice_how_rows_are_batched(links, verb):
    link = links[verb]
    for cut in range(link.given.num_rows + 1):
        halves = [
            golden.run(link.step, link.kit, t) for t in (link.given.slice(0, cut), link.given.slice(cut))
        ]
        assert same(pa.concat_tables(halves), link.out)


@pytest.mark.parametrize("verb", CORPUS_STEPS)
def test_a_faulty_row_passes_a_corpus_step_untouched(links, verb):
    link = links[verb]
    fault = {"step": "read", "reason": "made_up", "detail": "for this test", "transient": False}
    column = pa.array([fault, *link.given["fault"].to_pylist()[1:]], arrow.FAULT)
    given = link.given.set_column(link.given.schema.get_field_index("fault"), "fault", column)
    out = golden.run(link.step, link.kit, given)
    first = given["source"][0].as_py()
    rows = [r for r in out.to_pylist() if r["source"] == first and r["fault"]]
    assert [r["fault"] for r in rows] == [fault]


class Bomb:
    """What a field becomes that a step did not declare: it may be carried, and nothing else."""

    def _burst(self, *args, **kwargs):
        raise AssertionError("a step touched a field that it does not declare in reads()")

    __str__ = __repr__ = __len__ = __iter__ = __bool__ = __eq__ = __lt__ = __add__ = _burst
    __getitem__ = __contains__ = __getattr__ = __float__ = __format__ = __call__ = _burst
    __hash__ = None


class Poisoned(Mapping):
    """A mapping whose undeclared values are bombs. Copying it is no reading."""

    def __init__(self, values, allowed):
        self.values_ = {k: v if k in allowed else Bomb() for k, v in values.items()}

    def __getitem__(self, key):
        return self.values_[key]

    def __iter__(self):
        return iter(self.values_)

    def __len__(self):
        return len(self.values_)


def poisoned(question, reads):
    """The question with a bomb in every field that is not declared."""
    change = {}
    for name in ("text", "body", "asked_at", "citations", "answer", "outcome", "origin", "order", "due"):
        if name not in reads:
            change[name] = Bomb()
    replies = {r.removeprefix("replies.") for r in reads if r.startswith("replies.")}
    change["replies"] = Poisoned({**question.replies, "gold": Reply("the gold answer", ANSWERED)}, replies)
    scores = {r.removeprefix("hits.") for r in reads if r.startswith("hits.")}
    change["hits"] = tuple(replace(h, scores=Poisoned(h.scores, scores)) for h in question.hits)
    return replace(question, **change)


@pytest.mark.parametrize("verb", QUESTION_STEPS)
def test_a_step_reads_only_what_it_declares(links, verb):
    link = links[verb]
    reads, writes = link.step.reads(), link.step.writes()
    out = golden.run(link.step, link.kit, [poisoned(q, reads) for q in link.given])
    for clean, found in zip(link.out, out, strict=True):
        for name in writes:
            head, _, rest = name.partition(".")
            if head == "hits" and rest:
                scored = {h.chunk: h.scores[rest] for h in clean.hits if rest in h.scores}
                assert {h.chunk: h.scores[rest] for h in found.hits if rest in h.scores} == scored
            elif head == "hits":
                assert [h.chunk for h in found.hits] == [h.chunk for h in clean.hits]
            elif head == "replies":
                assert found.replies[rest] == clean.replies[rest]
            else:
                assert getattr(found, head) == getattr(clean, head)
