"""Recipes that ask a knowledge graph or public data before the web: who answers, and what is never asked."""

import asyncio
import json
import re
import runpy
from dataclasses import replace
from itertools import islice

import publicdata
import pytest
from checkout import ROOT, SUPPORT, TESTS

from raypipe import readers
from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.contrib.crag.server import serve
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Reach
from raypipe.core.records import Question, Reply
from raypipe.models.fake import Scripted, echo
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.store.index import MemoryIndex
from raypipe.store.memo.memo import MemoryMemo

pytestmark = pytest.mark.slow

CONF = Conf((ROOT / "conf",))
MODELS = str(SUPPORT / "fake_models.yaml")
WEB = ("dense", "fuse", "rerank", "generate:web")
CORPORA = {}
"""Corpus steps and sources -> what is built of them, once."""


class Kit(LocalKit):
    """Models that compute from words; the language model says what a script says."""

    def __init__(self, script=echo):
        super().__init__(None, "transformers", clock=lambda: 0.0)  # of traces
        self.llm = Scripted(script, max_model_len=9000)

    def generator(self, model):
        return self.llm.generate


def answered(name, rows, graphs, kit, memo=None, batch=50):
    """Questions over their own pages, and the counts of the stages."""
    recipe, seen = load_recipe(name, MODELS, CONF, graphs), set()
    sources = [s for r in rows for s in readers.unseen(r.sources, seen)]

    async def run():
        key = (repr(recipe.corpus), *seen)
        if key not in CORPORA:
            CORPORA[key] = await CorpusExecutor(recipe, kit)(arrow.corpus_table(sources))
        corpus = CORPORA[key]
        vectors = {model_identity(m): corpus.vectors[m.name] for m in recipe.embedders()}
        ask = QuestionExecutor(
            recipe, kit.with_index(MemoryIndex(corpus.texts, corpus.passages, vectors)), memo
        )
        questions = [r.question for r in rows]
        out = [q for i in range(0, len(rows), batch) for q in await ask(questions[i : i + batch])]
        await kit.close()
        return out, ask.counts

    return asyncio.run(run())


@pytest.fixture(scope="module")
def five(data):
    """The first real questions, with their pages."""
    read = readers.open([data / "crag/dev_data.jsonl.bz2"], "crag", readers.ReadCounts())
    return list(islice(read, 5))


@pytest.fixture(scope="module")
def server():
    tables = runpy.run_path(str(TESTS / "contrib/crag/smallgraph.py"))["build"]().tables
    # Among two companies no word is rare enough to be found.
    tables.insert("company", [{"ticker": t, "name": f"{t} Inc."} for t in ("AAA", "BBB", "CCC", "DDD")])
    with serve(tables) as url:
        yield url


@pytest.mark.parametrize("name", ["db3-task2", pytest.param("db3-task3", marks=pytest.mark.drill)])
def test_db3_answers_real_questions_and_what_the_graph_answered_skips_the_web(five, server, name):
    memo = MemoryMemo()
    together, counts = answered(name, five, {"crag-mock": server}, Kit(), memo)
    assert len(together) == 5 and {q.outcome for q in together} <= {"answered", "abstained", "false_premise"}
    kg = [q for q in together if q.origin == "kg"]
    assert kg and all(q.replies["facts"].label == "answered" for q in kg)
    assert all(counts[stage].skipped == len(kg) for stage in WEB)
    assert counts["kg_query:facts"].calls.replies.computed > 0
    apart, counts = answered(name, five, {"crag-mock": server}, Kit(), memo, batch=1)
    assert apart == together
    asked = {s: c.calls.replies.computed for s, c in counts.items() if s.startswith("generate")}
    assert set(asked.values()) == {0}, "replies are remembered"


def test_static_replies_of_the_graph_are_remembered_and_live_ones_are_asked_again(five, server):
    for domain, again in (("Florida City", False), ("lakers", True)):
        memo = MemoryMemo()

        def script(chat, sampling, adapter, name=domain):
            if "Category:" in chat[-1].content:
                return "sports"
            if sampling.constraint is not None:
                live = f'get_nba_on_date("{name}", "2024-02-26")["opponent"]'
                return live if name == "lakers" else f'get_open("{name}")["population"]'
            return echo(chat, sampling, adapter)

        for _ in range(2):
            _, counts = answered("db3-task2", five, {"crag-mock": server}, Kit(script), memo)
        assert (counts["kg_query:facts"].calls.replies.computed > 0) == again


def weknow(domain="open", certainty=99, invalid=False, calls=(), operation="value", confidence="high"):
    """What a model says to each prompt of WeKnow."""

    def script(chat, sampling, adapter):
        said = chat[0].content + chat[-1].content
        if "You sort questions" in said:
            return json.dumps({"domain": domain, "certainty": certainty, "invalid": invalid})
        if "You analyse questions" in said:
            return calls if isinstance(calls, str) else json.dumps({"calls": calls, "operation": operation})
        return json.dumps({"answer": "from the web", "confidence": confidence})

    return script


MAYOR = [
    {"function": "entity", "name": "florida city", "attribute": "mayor"},
    {"function": "entity", "name": "$1", "attribute": "birth_place"},
]
STEEL = [{"function": "market_cap", "name": "united steel"}]
TICKER = [{"function": "market_cap", "name": "$x"}]
GAME = [{"function": "nba", "name": "lakers", "time": "2024-02-26", "attribute": "opponent"}]
DIRECTOR = [{"key": "job", "op": "eq", "value": "Director"}]
OLDER = [
    {"function": "crew", "name": "amélie", "other": "", "attribute": "name", "conditions": DIRECTOR},
    {"function": "crew", "name": "small town ecstasy", "other": "", "attribute": "name"},
    {"function": "person", "name": "$1", "attribute": "birthday"},
    {"function": "person", "name": "$2", "attribute": "birthday"},
]
LONG = [
    {"function": "crew", "name": "", "other": "walt becker", "attribute": "movie_name", "order": "-year"},
    {"function": "movie", "name": "$1", "attribute": "length"},
    {"function": "movie", "name": "amélie", "attribute": "length"},
]
ROLE = [{"function": "cast", "name": "amélie", "other": "brenda crichlow", "attribute": "character"}]


@pytest.mark.parametrize(
    ("script", "outcome", "answer", "origin"),
    [
        (weknow(calls=MAYOR), "answered", "homestead", "kg"),  # two hops
        (weknow("movie", calls=ROLE, operation="premise"), "false_premise", "invalid question", "kg"),
        (weknow("movie", calls=OLDER, operation="least"), "answered", "walt becker", "kg"),
        (weknow("movie", calls=LONG, operation="sum"), "answered", "235", "kg"),  # 113 and 122
        (weknow("open", calls=STEEL), "answered", "11", "kg"),
        (weknow("finance", calls=STEEL), "answered", "from the web", "web"),  # only like a company's name
        (weknow("finance", calls=TICKER), "answered", "11", "kg"),
        (weknow(invalid=True), "false_premise", "invalid question", "domain"),
        (weknow(calls=[]), "answered", "from the web", "web"),
        (weknow(calls=[], confidence="medium"), "abstained", "i don't know", ""),
        (weknow(calls=MAYOR[1:]), "answered", "from the web", "web"),  # $1 with nothing before it
    ],
)
def test_weknow_asks_the_graph_by_functions_and_answers_where_it_is_sure(
    five, server, script, outcome, answer, origin
):
    out, counts = answered("weknow", five[:3], {"crag-mock": server}, Kit(script))
    assert {(q.outcome, q.answer, q.origin) for q in out} == {(outcome, answer, origin)}
    web = 3 if origin in ("web", "") else 0
    assert counts["generate:web"].rows - counts["generate:web"].skipped == web


@pytest.mark.parametrize(
    ("confidence", "answer", "origin"),
    [("high", "from the web", "web"), ("medium", "chicago bulls", "kg")],
)
def test_of_games_the_web_is_asked_first_and_the_graph_answers_where_it_does_not(
    five, server, confidence, answer, origin
):
    script = weknow("sports", calls=GAME, confidence=confidence)
    out, counts = answered("weknow", five[:3], {"crag-mock": server}, Kit(script))
    assert {(q.outcome, q.answer, q.origin) for q in out} == {("answered", answer, origin)}
    assert counts["generate:web"].skipped == 0 == counts["rerank"].skipped


@pytest.mark.parametrize(("domain", "first"), [("sports", "web"), ("finance", "kg"), ("open", "kg")])
def test_the_order_of_graph_and_web_differs_by_domain(domain, first):
    recipe = load_recipe("weknow", MODELS, CONF, {"crag-mock": "http://127.0.0.1:9"})
    replies = {"domain": Reply(domain, domain), "kg": Reply("a", "answered"), "web": Reply("b", "answered")}
    [out] = asyncio.run(recipe.question[-1].step.open(Kit())([Question("q", "?", replies=replies)]))
    assert out.origin == first


def test_weknow_reranks_the_dense_passages_alone_and_keeps_bm25s_five_among_the_first_ten(five, server):
    shown = []

    def script(chat, sampling, adapter):
        if "You answer questions" in chat[0].content:
            shown.append(chat[-1].content)
        return weknow(calls=[])(chat, sampling, adapter)

    out, _ = answered("weknow", five, {"crag-mock": server}, Kit(script))
    for q in out:
        of = {n: {h.chunk for h in q.hits if n in h.scores} for n in ("rerank", "bm25", "dense")}
        assert of["rerank"] == of["dense"] and of["bm25"] <= set(q.order[:10])
        assert set(q.order) == of["dense"] | of["bm25"]
    assert len(shown) == 5


def test_weknow_keeps_a_pool_of_pages_and_one_of_snippets_and_looks_no_further(five, server):
    out, _ = answered("weknow", five, {"crag-mock": server}, Kit(weknow(calls=[])))
    for q in out:
        of = {n: {h.chunk for h in q.hits if n in h.scores} for n in ("pages", "snippets", "bm25", "dense")}
        pages = {h.chunk for h in q.hits if h.source in {c.page for c in q.citations}}
        assert of["pages"] <= pages and of["snippets"].isdisjoint(pages)
        assert of["pages"] and of["snippets"] and max(map(len, (of["pages"], of["snippets"]))) <= 200
        assert of["bm25"] | of["dense"] <= of["pages"] | of["snippets"]
        assert (
            len(of["bm25"]) <= 5 and 0 < len(of["dense"]) <= 20 and set(q.order) <= of["bm25"] | of["dense"]
        )


def test_a_function_reply_that_is_no_json_sends_the_row_to_the_web_with_its_fault(five, server):
    def script(chat, sampling, adapter):
        if "You analyse questions" in chat[0].content:
            return json.dumps({"calls": [{"function": "movie", "name": ""}], "operation": "value"})
        return weknow()(chat, sampling, adapter)

    [q], _ = answered("weknow", five[:1], {"crag-mock": server}, Kit(script))
    assert q.replies["calls"].fault.reason == "unreadable" and q.origin == "web"


def test_a_domain_that_the_first_version_does_not_know_goes_to_the_web_without_a_call(five, server, tmp_path):
    """As the ladder of docs/recipes/weknow.md sets it."""
    first = tmp_path / "first.yaml"
    prompts = "{generate:domain.prompt: weknow/domain-1, generate:functions.when: {domain: [movie]}}"
    first.write_text(f"{{about: the first version, like: weknow, set: {prompts}}}")
    for domain, skipped in (("movie", 0), ("finance", 1)):
        script = weknow(domain=domain, calls=OLDER[:1])
        [q], counts = answered(str(first), five[:1], {"crag-mock": server}, Kit(script))
        assert counts["generate:functions"].skipped == skipped
        assert q.outcome == "answered" and not q.faults and (q.origin == "web") == bool(skipped), domain


ABOUT = {"domain": "movie", "movie_name": "Amélie", "movie_aspect": "release_date", "year": "2014"}


@pytest.mark.parametrize(
    ("about", "told"),
    [
        (ABOUT, "The release date of the movie Amélie is 2001-04-25."),
        ({"domain": "other", "main_entity": "Florida City"}, "Florida City"),
        (
            {"domain": "music", "artist_name": "the larks"},
            "",
        ),  # it looks up films and entries alone
        ("no JSON", ""),
    ],
)
def test_the_third_baseline_shows_the_graphs_facts_after_the_webs_sentences(five, server, about, told):
    asked = []

    def script(chat, sampling, adapter):
        if "You take a question apart" in chat[0].content:
            return about if isinstance(about, str) else f"Here it is: {json.dumps(about)}"
        asked.append(chat[-1].content)
        return "2001"

    out, counts = answered("crag-kg-baseline", five[:2], {"crag-mock": server}, Kit(script))
    assert {(q.answer, q.origin) for q in out} == {("2001", "web")} and len(asked) == 2
    for chat in asked:
        web, graph = chat.split("## Web\n")[1].split("\n## Knowledge graph\n")
        graph = graph.split("\n# Task")[0]
        assert 0 < len(web) <= 2_000 and len(graph) <= 2_000
        assert told in graph and (bool(told) or not graph.strip()) and "i don't know" not in graph
    assert counts["dense"].skipped == counts["generate:web"].skipped == 0


@pytest.mark.drill
def test_a_server_that_is_down_leaves_the_web_path_and_a_row_that_is_not_whole(five):
    [q], _ = answered("db3-task2", five[:1], {"crag-mock": "http://127.0.0.1:9"}, Kit())
    assert q.replies["facts"].fault.reason == "unreachable"
    assert q.degraded == ("kg_query:facts",) and q.origin == "web" and q.outcome == "answered"


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """Tables of public data, by the command, from files as they are published."""
    return publicdata.tables(tmp_path_factory.mktemp("public"))


def reader(domain, names=""):
    """A model that knows the domain and the names, and answers from the context it is shown."""

    def script(chat, sampling, adapter):
        said = chat[-1].content
        if "Category:" in said:
            return domain
        if "Company:" in said or "Titles:" in said:
            return names or "none"
        shown = re.findall(r"<DOC>\n(.*?)\n</DOC>", said, re.DOTALL)
        return max(shown, key=lambda text: "won the Oscar" in text, default="I don't know")

    return script


def ask(five, public, text, script):
    row = replace(five[0], question=replace(five[0].question, text=text))
    [q], counts = answered("db3-task1-700-public", [row], public, Kit(script))
    return q, counts


@pytest.mark.parametrize(
    ("text", "script", "says"),
    [
        ("who won the best actor oscar in 2012?", reader("movie"), "jean dujardin won the oscar"),
        ("what was the grammy song of the year in 2012?", reader("music"), "rolling in the deep by adele"),
        (
            "what is the p/e ratio of tarn holdings?",
            reader("finance", "Tarn Holdings"),
            "the p/e ratio is 20",
        ),
        ("what is the market capitalization of TRNH?", reader("finance", "TRNH"), "4120000000"),
    ],
)
def test_public_data_answer_alone_without_a_web_call(five, public, text, script, says):
    q, counts = ask(five, public, text, script)
    assert q.origin == "known" and says in q.answer
    assert all(counts[stage].skipped == 1 and not counts[stage].calls.computed for stage in WEB)


def test_what_is_known_of_films_stands_before_the_passages_of_the_web(five, public):
    q, counts = ask(five, public, "who directed toy story?", reader("movie", "Toy Story && Nothing"))
    assert q.origin == "web" and "the director is j. lasseter" in q.answer
    assert counts["generate:web"].skipped == 0


def test_public_data_and_passages_stand_in_one_context_as_the_paper_has_it(five, tmp_path):
    told = publicdata.tables(tmp_path, "--sentences", "attributes")
    for text, domain, named, said in (
        (
            "who won the best actor oscar in 2012?",
            "movie",
            "none",
            "the category is actor in a leading role.",
        ),
        ("what is the pe of trnh?", "finance", "TRNH", "the pe ratio is 20."),
        ("how long is toy story?", "movie", "Toy Story", "the runtime is 81.0."),
    ):
        row = replace(five[0], question=replace(five[0].question, text=text))
        kit = Kit(reader(domain, named))
        [q], counts = answered("db3-task1-700-together", [row], told, kit)
        assert q.origin == "web" and counts["generate:web"].skipped == 0 and said in q.answer, text
    recipe = load_recipe("db3-task1-700-together", MODELS, CONF, told)
    rule = next(s.step for s in recipe.question if s.name == "facts:public").table.table["finance"]
    assert rule.levels[-1] == "embedding" and rule.near == 0.9


def test_a_film_that_is_not_known_brings_no_facts_of_one_with_a_like_title(five, public):
    q, _ = ask(five, public, "who directed toy story 3?", reader("movie", "toy story 3"))
    assert q.replies["films"].label == "abstained" and q.origin == "web"
    q, _ = ask(five, public, "how long is toy story 2?", reader("movie", "toy story 2"))
    assert "The title is Toy Story 2." in q.replies["films"].text


MEANT = """
about: films by what their titles mean
like: db3-task1-700-public
set:
  facts:films.table:
    by: domain
    movie: {table: movielens, by: name, levels: [exact, embedding], embedder: all-MiniLM-L6-v2, near: NEAR}
"""


@pytest.mark.parametrize(("near", "found"), [(0.6, True), (0.9, False)])
def test_how_a_name_is_linked_is_a_rule_of_its_domain_and_may_be_by_meaning(
    five, public, tmp_path, near, found
):
    """The fake embedder knows words: "the toy story film" has a cosine of .71 with "Toy Story"."""
    variant = tmp_path / "meant.yaml"
    variant.write_text(MEANT.replace("NEAR", str(near)))
    row = replace(five[0], question=replace(five[0].question, text="who directed the toy story film?"))
    kit = Kit(reader("movie", "the toy story film"))
    [q], counts = answered(str(variant), [row], public, kit)
    assert ("The title is Toy Story." in q.replies["films"].text) is found
    assert counts["facts:films"].calls.vectors.computed == 3, "two titles and the name"
    recipe = load_recipe(str(variant), MODELS, CONF, public)
    step = next(s.step for s in recipe.question if s.name == "facts:films")
    assert step.bound(row.question, Reach(0, 0, 0)).calls >= 3


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("levels: [exact, embedding]", "embedder and near: expected both"),
        (
            "embedder: all-MiniLM-L6-v2, near: 0.9",
            "embedder and near: expected both",
        ),
        ("levels: [embedding], embedder: all-MiniLM-L6-v2, near: 2.0", "near: expected a cosine above 0"),
        ("levels: []", "levels: expected at least one, found none"),
    ],
)
def test_a_rule_of_linking_that_lacks_its_model_is_refused_when_the_recipe_is_read(tmp_path, rule, says):
    variant = tmp_path / "meant.yaml"
    whole = "levels: [exact, embedding], embedder: all-MiniLM-L6-v2, near: NEAR"
    variant.write_text(MEANT.replace(whole, rule))
    with pytest.raises(ConfError, match=re.escape(says)):
        load_recipe(str(variant), MODELS, CONF)


@pytest.mark.parametrize(("whole", "label"), [(False, "answered"), (True, "abstained")])
def test_a_trigger_is_a_part_of_the_question_as_published_or_a_whole_word(five, public, whole, label):
    """People has "pe" in it: db3 looks the company up, and a rule of whole words does not."""
    recipe = load_recipe("db3-task1-700-public", MODELS, CONF, public)
    step = next(s.step for s in recipe.question if s.name == "facts:public")
    rule = replace(step.table.table["finance"], whole_words=whole)
    step = replace(step, table=replace(step.table, table={"finance": rule}))
    replies = {"domain": Reply("finance", "finance"), "company": Reply("TRNH", "answered")}
    for text, expected in [
        ("how many people work for trnh?", label),
        ("what is the pe of trnh?", "answered"),
        ("who founded trnh?", "abstained"),
    ]:
        question = replace(five[0].question, text=text, replies=replies)
        [out] = asyncio.run(step.open(LocalKit(None))([question]))
        assert out.replies["public"].label == expected, text


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("who won the best actor oscar?", "movie"),
        ("who won the oscar in 2012?", "other"),
        ("a film of 2012?", "movie"),
    ],
)
def test_without_a_trigger_a_year_or_the_domain_public_data_say_nothing(five, public, text, domain):
    q, _ = ask(five, public, text, reader(domain))
    assert q.replies["public"].label == "abstained" and q.origin != "known"


def test_a_csv_of_another_kind_is_refused_with_the_columns_that_lack(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    out = ["--out", str(tmp_path / "o.parquet")]
    assert main(["facts", "build", str(tmp_path / "x.csv"), "--source", "oscar", *out]) == 3
    assert "expected a column year_ceremony" in capsys.readouterr().err


def test_a_recipe_whose_graph_nobody_said_the_place_of_is_refused(tmp_path, capsys):
    store = ["--store", str(tmp_path / "store")]
    (tmp_path / "q.jsonl").write_text("")
    code = main(
        ["eval", "local-kg", "--data", str(tmp_path / "q.jsonl"), *store, "--out", str(tmp_path / "out")]
    )
    assert code == 2 and "--graph world=FOLDER" in capsys.readouterr().err
