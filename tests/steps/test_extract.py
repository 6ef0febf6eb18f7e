from pathlib import Path

import pytest
from shelf import HASH, OVERLAP, Shelf, asked, chunk, holds_laws, question

from raypipe.core import config
from raypipe.core.records import IDK
from raypipe.steps.extract import Extract
from raypipe.text.evidence import FEATURES, Fitted, FittedOn

TEXTS = {
    "book": "Emma is a novel. Emma was written by Jane Austen in 1815. It was read widely.",
    "rain": "Rain fell on the town. The river rose by two metres.",
    "sky": "The sky is blue.",
}
SHELF = Shelf(TEXTS)
ON = FittedOn("made up", "all rows", "none")
SURE = Fitted(9.0, {}, ON)
UNSURE = Fitted(-9.0, {}, ON)


def ranked(text: str, *sources: str, name: str = "q"):
    return question(text, *sources, name=name, order=tuple(chunk(SHELF, s) for s in sources))


def reply(text: str, *sources: str, **fields):
    (q,) = asked(Extract(embedder=HASH, maxsim=OVERLAP, **fields), SHELF, ranked(text, *sources))
    return q.replies["extract"]


def quoted(r) -> str:
    return TEXTS[r.quotes[0].source][slice(*r.quotes[0].span)]


def test_without_fitted_numbers_it_always_abstains_and_still_quotes_its_evidence():
    r = reply("who wrote emma", "rain", "book")
    assert (r.text, r.label, r.confidence) == (IDK, "abstained", None)
    assert quoted(r) == "Emma was written by Jane Austen in 1815."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("who wrote emma", "Jane Austen"),
        ("when was emma written", "1815"),
        ("was emma read widely", "It was read widely."),
        ("what fell on the town", "Rain fell on the town."),
    ],
)
def test_it_says_a_span_where_one_is_asked_for_and_else_the_sentence(text, said):
    r = reply(text, "sky", "rain", "book", fitted=SURE)
    assert (r.text, r.label) == (said, "answered") and r.confidence == pytest.approx(1.0, abs=1e-3)
    assert said in quoted(r)


def test_below_the_threshold_it_abstains_and_states_the_probability():
    r = reply("who wrote emma", "book", fitted=UNSURE)
    assert (r.text, r.label) == (IDK, "abstained") and r.confidence == pytest.approx(0.0, abs=1e-3)
    assert reply("who wrote emma", "book", fitted=UNSURE, threshold=0.0).label == "answered"


def test_only_the_first_passages_of_the_order_are_read():
    assert quoted(reply("who wrote emma", "rain", "book", passages=1)) in TEXTS["rain"]


def test_a_question_without_passages_abstains_without_a_quote():
    r = reply("who wrote emma", fitted=SURE)
    assert (r.text, r.label, r.quotes) == (IDK, "abstained", ())


def test_rows_and_batches_hold():
    asking = [
        ranked("who wrote emma", "book", "sky", name="1"),
        ranked("what fell", name="2"),
        ranked("what fell", "rain", "book", name="3"),
        ranked("when", "book", name="4"),
    ]
    holds_laws(Extract(embedder=HASH, maxsim=OVERLAP, fitted=SURE), SHELF, asking)


def test_it_says_what_it_reads_and_refuses_nonsense():
    step = Extract(embedder=HASH, maxsim=OVERLAP, into="web")
    assert step.reads() == {"text", "order", "index.text"} and step.writes() == {"replies.web"}
    with pytest.raises(ValueError, match="probability from 0 to 1"):
        Extract(embedder=HASH, maxsim=OVERLAP, threshold=2.0)


def test_the_fitted_numbers_that_ship_name_known_features_and_where_they_come_from():
    path = Path(__file__).parents[2] / "conf" / "fitted" / "local-extract.yaml"
    fitted = config.build(Fitted, config.read_yaml(path), config.Where(str(path)))
    assert set(fitted.weights) == set(FEATURES)
    assert fitted.fitted_on.data and fitted.fitted_on.split and fitted.fitted_on.metric
