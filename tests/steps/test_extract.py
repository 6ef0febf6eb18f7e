from dataclasses import replace

import numpy as np
import pytest
from checkout import ROOT
from shelf import HASH, Shelf, asked, chunk, holds_laws, question

from raypipe.core import config
from raypipe.core.records import IDK, Block, Layout
from raypipe.steps.extract import Extract, choose, say, shown
from raypipe.text.blocks import plain_blocks
from raypipe.text.candidates import Sentence, SourceText
from raypipe.text.evidence import FEATURES, UNFITTED, Fitted, FittedOn
from raypipe.text.page_parser import fold

TEXTS = {
    "book": "Emma is a novel. Emma was written by Jane Austen in 1815. It was read widely.",
    "rain": "Rain fell on the town. The river rose by two metres.",
    "sky": "The sky is blue.",
    "rivers": "The Ohio is longer than the Elbe. The Ohio is a river.",
    "prize": "Vela Orn has never won the Brask prize.",
    "drums": "The Brask prize went to Bo Li, not to Vela Orn.",
}
SHELF = Shelf(TEXTS)
ON = FittedOn("made up", "all rows", "none")
SURE = Fitted("", 9.0, UNFITTED.weights, 0.9, ON)
UNSURE = replace(SURE, bias=-19.0)


def ranked(text: str, *sources: str, name: str = "q", shelf: Shelf = SHELF, **fields):
    return question(text, *sources, name=name, order=tuple(chunk(shelf, s) for s in sources), **fields)


def reply(text: str, *sources: str, shelf: Shelf = SHELF, **fields):
    (q,) = asked(Extract(embedder=HASH, **fields), shelf, ranked(text, *sources, shelf=shelf))
    return q.replies["extract"]


def quoted(r, shelf: Shelf = SHELF) -> str:
    return shelf.of[r.quotes[0].source][slice(*r.quotes[0].span)]


def test_without_fitted_numbers_it_always_abstains_and_still_quotes_the_near_miss():
    r = reply("who wrote emma", "rain", "book")
    assert (r.text, r.label, r.confidence) == (IDK, "abstained", None)
    assert quoted(r) == "Emma was written by Jane Austen in 1815."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("who wrote emma", "Jane Austen"),
        ("when was emma written", "1815"),
        ("how was emma read", "It was read widely."),
        ("what fell on the town", "Rain fell on the town."),
        ("why did rain fall on the town", "Rain fell on the town."),
        ("what books were written in 1815", "Emma was written by Jane Austen in 1815."),
    ],
)
def test_it_says_a_span_where_one_is_asked_for_and_else_the_sentence(text, said):
    r = reply(text, "sky", "rain", "book", fitted=SURE)
    assert (r.text, r.label) == (said, "answered") and r.confidence == pytest.approx(1.0, abs=1e-3)
    assert said in quoted(r)


def test_an_unlikely_span_leaves_its_sentence():
    r = reply("who wrote emma", "book", fitted=UNSURE, threshold=0.0)
    assert r.text == quoted(r) == "Emma was written by Jane Austen in 1815."


def test_a_comparison_is_answered_with_the_side_that_a_sentence_decides_or_not_at_all():
    r = reply("which is longer, the elbe or the ohio?", "rivers", fitted=SURE)
    assert (r.text, r.label, r.confidence) == ("The Ohio", "answered", 0.9)
    assert quoted(r) == "The Ohio is longer than the Elbe."
    r = reply("which is deeper, the elbe or the ohio?", "rivers", fitted=SURE)
    assert (r.text, r.label) == (IDK, "abstained") and r.quotes
    assert reply("was emma read widely", "book", fitted=SURE).text == "It was read widely.", "no reasoning"


def test_a_sentence_that_denies_what_the_question_presumes_is_no_answer():
    r = reply("how did vela orn get the brask prize?", "prize", fitted=SURE)
    assert (r.text, r.label, r.confidence) == (IDK, "abstained", None)
    assert quoted(r) == TEXTS["prize"], "the near miss says why"
    assert reply("which prize did vela orn never win?", "prize", fitted=SURE).text == TEXTS["prize"]


def test_sentences_end_where_blocks_do_and_menus_are_not_said():
    text = "Emma Buy News Emma sold well and Jane Austen wrote Emma"
    shelf = Shelf({"page": text})
    ends = [text.index(" Buy"), text.index(" Emma sold"), text.index(" and Jane"), len(text)]
    starts = [0, *(e + 1 for e in ends[:-1])]
    kinds = ("title", "menu", "paragraph", "paragraph")
    shelf.parts["page"] = tuple(map(Block, starts, ends, kinds))
    r = reply("how did emma sell", "page", shelf=shelf, fitted=SURE)
    assert r.text == quoted(r, shelf) == "Emma sold well"
    shelf.hides["page"] = ((starts[2], ends[2]),)
    assert quoted(reply("how did emma sell", "page", shelf=shelf, fitted=SURE), shelf).endswith("wrote Emma")


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
        ranked("which is longer, the elbe or the ohio?", "rivers", name="5"),
    ]
    holds_laws(Extract(embedder=HASH, fitted=SURE), SHELF, asking)


def test_it_says_what_it_reads_and_refuses_nonsense():
    step = Extract(embedder=HASH, into="web")
    assert step.reads() == {"text", "order", "index.text", "index.hidden", "index.blocks", "index.layouts"}
    assert step.writes() == {"replies.web", "replies.web_others"}
    with pytest.raises(ValueError, match="probability from 0 to 1"):
        Extract(embedder=HASH, threshold=2.0)
    with pytest.raises(ValueError, match="words: expected at least 1, found 0"):
        Extract(embedder=HASH, words=0)


def test_numbers_that_another_embedder_was_fitted_with_are_refused():
    real, other = replace(HASH, path="folder"), replace(SURE, embedder="sha256:other")
    with pytest.raises(
        ValueError, match=r"found sha256:other\. Fit them again \(python bench/figures/extract"
    ):
        Extract(embedder=real, fitted=other)
    Extract(embedder=real, fitted=replace(SURE, embedder=real.weights))
    Extract(embedder=HASH, fitted=other)  # a stand-in that has no weights


def test_a_long_sentence_is_cut_around_its_span_and_the_quote_keeps_it_all():
    words = [f"w{i}" for i in range(100)]
    sentence = " ".join(words)
    at = sentence.index("w70")
    assert shown(sentence, (5, 80), at) == "… w69 w70 w71 w72 w73 …"
    assert shown(sentence, (20, 30), at) == "… w67 w68 w69 w70 w71 w72 w73 …"
    assert shown(sentence, (5, 80)) == "w0 w1 w2 w3 w4 …"
    assert shown(sentence, (100, 8)) == "w0 w1 w2 …"
    assert shown(sentence, (100, 400)) == sentence
    assert shown("x" * 100 + " y", (5, 8), 40) == "xxxxxxxx …", "of one long word its begin"


def shipped():
    path = ROOT / "conf/fitted/local-extract.yaml"
    return config.build(Fitted, config.read_yaml(path), config.Where(str(path)))


SMALL = ("The Falcon X2 flies for 31 minutes.", "Repairs of the Falcon X2 are done in Rotterdam.")
OF_MINILM = {
    "how long is the warranty?": ([0.182, 0.185], ""),
    "what does the Falcon X2 cost?": ([0.641, 0.55], ""),
    "how long does the Falcon X2 fly?": ([0.866, 0.439], "31 minutes"),
    "where are repairs of the Falcon X2 done?": ([0.528, 0.775], SMALL[1]),
}
"""Question -> cosine with each sentence, and what is said."""


@pytest.mark.parametrize("text", OF_MINILM)
def test_with_the_fitted_numbers_that_ship_small_pages_answer_what_they_say_and_nothing_else(text):
    cosine, expected = OF_MINILM[text]
    found = [Sentence("falcon", (0, len(s)), s, around="Falcon X2") for s in SMALL]
    choice = choose(text, found, np.array(cosine), shipped())
    said = say(choice, shipped(), (60, 250), {"falcon": SourceText(" ".join(SMALL))})
    assert (said.text if said.probability >= 0.5 else "") == expected


def documents(**texts):
    """A shelf of plain documents, as they are read from a folder."""
    shelf = Shelf({name: fold(text) for name, text in texts.items()})
    for name, text in texts.items():
        shelf.parts[name] = plain_blocks(text, titled=True)
    return shelf


def test_a_fact_of_a_table_is_said_with_its_label_and_quoted_with_its_row():
    shelf = documents(foo="Foo pump\n\n| Weight | 17.2 kg |\n| Warranty | 24 months |\n\nIt is quiet.\n")
    r = reply("How long is the warranty of the Foo pump?", "foo", shelf=shelf, fitted=SURE)
    assert (r.text, quoted(r, shelf)) == ("Warranty: 24 months", "Warranty | 24 months")


OLD = "Travel policy ({})\n\nThe per diem is 28 EUR a day.\n"
NEW = "Travel policy ({})\n\nThe per diem is 34 EUR a day.\n"


def others(text, shelf, *sources):
    (q,) = asked(Extract(embedder=HASH, fitted=SURE), shelf, ranked(text, *sources, shelf=shelf))
    also = q.replies.get("extract_others")
    values = [shelf.of[x.source][slice(*x.span)] for x in also.quotes] if also else []
    return q.replies["extract"].text, q.replies["extract"].quotes[0].source, values


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD.format(2023), NEW.format(2025)),
        (OLD.format("2025, superseded"), NEW.format(2023)),
        (OLD.replace(" ({})", "\n\nSuperseded by the policy of May."), NEW.replace(" ({})", "")),
        (OLD.replace(" ({})", "\nupdated: 2023-05-01"), NEW.replace(" ({})", "\nupdated: 2023-06-01")),
    ],
)
def test_of_two_values_in_the_same_words_the_newer_is_said_and_the_other_is_quoted(old, new):
    shelf = documents(a=old, b=new)
    for order in ("ab", "ba"):
        assert others("How much is the per diem?", shelf, *order) == ("34 EUR a day", "b", ["28 EUR a day"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("travel-2023.md", "2026-01-02T00:00:00"), ("travel-2025.md", "2026-01-01T00:00:00")),
        (("q/20250301_travel.md", ""), ("q/20250302_travel.md", "")),
        (("travel.md", "2026-01-01T00:00:00"), ("policy.md", "2026-01-01T00:00:01")),
        (("2019/travel.md", ""), ("policy.md", "2026-01-01T00:00:00")),
    ],
)
def test_what_has_no_date_in_its_title_is_dated_by_the_name_of_its_file_then_by_its_time(old, new):
    shelf = documents(a=OLD.replace(" ({})", ""), b=NEW.replace(" ({})", ""))
    for source, (name, modified) in (("a", old), ("b", new)):
        shelf.files[source] = Layout("d", source, name, "", (), (), modified)
    for order in ("ab", "ba"):
        assert others("How much is the per diem?", shelf, *order) == ("34 EUR a day", "b", ["28 EUR a day"])


def test_a_value_of_another_thing_or_the_same_value_is_no_other_version():
    shelf = documents(
        foo="Foo pump\n\n| Warranty | 24 months |\n",
        bar="Bar pump\n\n| Warranty | 12 months |\n",
        copy="Foo pump (2026)\n\n| Warranty | 24 months |\n",
    )
    said = others("How long is the warranty of the Foo pump?", shelf, "foo", "bar", "copy")
    assert said == ("Warranty: 24 months", "foo", [])


def test_the_fitted_numbers_that_ship_name_known_features_and_where_they_come_from():
    fitted = shipped()
    assert set(fitted.weights) == set(FEATURES) and fitted.embedder
    assert fitted.fitted_on.data and fitted.fitted_on.split and fitted.fitted_on.metric
