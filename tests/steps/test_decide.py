import pytest
from shelf import Shelf, asked, holds_laws, question

from raypipe.core.protocols import Model
from raypipe.core.records import IDK, Fault, Reply
from raypipe.steps.decide import Decide

PARIS = Reply("Paris", "answered", 0.9)
NO = Reply(IDK, "abstained")
INVALID = Reply("invalid question", "invalid")
SKIPPED = Reply("", "skipped")
BROKE = Reply("", "fault")
WORDS = Model("whitespace", "tokenizer", "whitespace", "", "", "", "whitespace@1")


def decided(faults=(), prefer=("kg", "web"), lower=False, **replies):
    (q,) = asked(Decide(prefer=prefer, lower=lower), Shelf({}), question("?", replies=replies, faults=faults))
    return q


def said(q):
    return q.answer, q.outcome, q.origin


@pytest.mark.parametrize(
    ("kg", "web", "expected"),
    [
        (PARIS, Reply("Rome", "answered"), ("Paris", "answered", "kg")),
        (NO, PARIS, ("Paris", "answered", "web")),
        (SKIPPED, PARIS, ("Paris", "answered", "web")),
        (BROKE, PARIS, ("Paris", "answered", "web")),
        (INVALID, PARIS, ("invalid question", "false_premise", "kg")),
        (NO, INVALID, ("invalid question", "false_premise", "web")),
        (NO, NO, (IDK, "abstained", "")),
        (BROKE, NO, (IDK, "abstained", "")),
        (SKIPPED, SKIPPED, (IDK, "abstained", "")),
        (BROKE, BROKE, ("", "fault", "")),
    ],
)
def test_the_first_reply_that_settles_the_question_decides(kg, web, expected):
    assert said(decided(kg=kg, web=web)) == expected


@pytest.mark.parametrize("text", ["I don't know", "well, i don\u2019t KNOW that.", "I don\u02bct know"])
def test_an_answer_that_says_i_dont_know_is_an_abstention(text):
    answer = Reply(text, "answered")
    assert said(decided(kg=answer, web=NO)) == (IDK, "abstained", "")
    assert said(decided(kg=answer, web=PARIS)) == ("Paris", "answered", "web")


def test_nothing_but_faults_is_a_fault_that_says_what_there_was():
    q = decided(kg=BROKE)
    (fault,) = q.faults
    assert "kg: fault, web: not there" in fault.detail and not fault.transient


def test_a_row_that_broke_is_no_abstention_but_keeps_an_answer_that_it_has():
    fault = Fault("fuse", "missing_score", "?", transient=False)
    broken = decided(faults=(fault,), kg=NO, web=SKIPPED)
    assert said(broken) == ("", "fault", "") and broken.faults == (fault,)
    assert said(decided(faults=(fault,), kg=PARIS, web=SKIPPED)) == ("Paris", "answered", "kg")


def test_a_row_cut_by_time_says_i_dont_know():
    late = Fault("web", "deadline", "?", transient=True)
    assert said(decided(faults=(late,), kg=NO, web=SKIPPED)) == (IDK, "abstained", "")


def test_answers_are_lower_cased_only_if_told():
    assert decided(kg=PARIS, web=NO, lower=True).answer == "paris"


def test_an_answer_is_cut_to_its_tokens_after_it_was_lower_cased():
    long = Reply(" ".join(f"Word{i}" for i in range(100)), "answered")
    cut = Decide(prefer=("web",), lower=True, answer_tokens=75, tokenizer=WORDS)
    (q,) = asked(cut, Shelf({}), question("?", replies={"web": long}))
    assert q.answer == " ".join(f"word{i}" for i in range(75))
    (q,) = asked(cut, Shelf({}), question("?", replies={"web": PARIS}))
    assert q.answer == "paris"
    with pytest.raises(ValueError, match="both or neither"):
        Decide(prefer=("web",), answer_tokens=75)
    with pytest.raises(ValueError, match="at least 1"):
        Decide(prefer=("web",), answer_tokens=0, tokenizer=WORDS)


def test_a_fault_that_a_reply_knows_is_the_rows():
    known = Fault("generate:kg", "unreadable", "expected JSON", transient=False)
    q = decided(kg=Reply("{", "fault", fault=known), web=SKIPPED)
    assert said(q) == (IDK, "abstained", "")
    q = decided(prefer=("kg",), kg=Reply("{", "fault", fault=known))
    assert said(q) == ("", "fault", "") and q.faults == (known,)


def test_rows_and_batches_hold():
    asking = [
        question("?", name=str(i), replies={"web": r}) for i, r in enumerate([PARIS, NO, BROKE, INVALID])
    ]
    holds_laws(Decide(prefer=("web",)), Shelf({}), asking)


def test_it_reads_what_it_prefers_and_must_prefer_something():
    assert Decide(prefer=("kg", "web")).reads() == {"replies.kg", "replies.web"}
    with pytest.raises(ValueError, match="at least one reply"):
        Decide(prefer=())
