"""A recipe is read with every mistake named; its digest covers what decides its output, no more."""

import copy
import json
from dataclasses import replace

import pytest
import yaml
from checkout import ROOT, SUPPORT

from raypipe.api.session import Session, from_environment, load_recipe
from raypipe.contrib.crag.references import GraphRef
from raypipe.core.conf import Conf
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.core.records import Citation, Question, Reply, Turn
from raypipe.recipes.read_recipe import from_tree
from raypipe.recipes.recipe import ranking_of, row_key
from raypipe.recipes.resolve import resolvers
from raypipe.recipes.serialize import from_plain, to_plain
from raypipe.recipes.wiring import basis
from raypipe.runs.stage_records import chains

CONF = Conf((ROOT / "conf",))
TREE = yaml.safe_load((SUPPORT / "fakes.yaml").read_text())


def made(tree, tmp_path, models=None):
    file = tmp_path / "made.yaml"
    file.write_text(yaml.safe_dump(tree, sort_keys=False))
    return load_recipe(str(file), models, CONF)


def changed(path, value):
    tree = copy.deepcopy(TREE)
    at = tree
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return tree


@pytest.mark.parametrize("name", [p.stem for p in (ROOT / "conf/recipes").glob("*.yaml")])
def test_every_recipe_that_ships_can_be_read(name):
    if name.startswith("onewo-"):  # most of its models have no pinned commit
        with pytest.raises(ConfError, match=r"expected the 40 hex digits .* `raypipe models add "):
            load_recipe(name, None, CONF)
    to_make = name.startswith("onewo-") or name.endswith("-tuned")  # adapters of the tuned ones are made
    models = str(SUPPORT / "fake_models.yaml") if to_make else None
    recipe = load_recipe(name, models, CONF)
    assert recipe.about and recipe.question


MISTAKES = [
    ("question 1 dense topp", 3, "question[1].dense: unknown field 'topp'; did you mean 'top'?"),
    ("question 1", {"dens": {}}, "question[1]: unknown step 'dens'; did you mean 'dense'?"),
    ("question 1 dense model", "hash-embeder", "no model named 'hash-embeder'; did you mean"),
    ("question 1 dense top", "30", "question[1].dense.top: expected a whole number, found text"),
    ("question 5 extract fitted", "nothing", "question[5].extract.fitted: no 'nothing' under fitted/"),
    ("question 6 decide prefer", ["web"], "decide reads replies.web, which no earlier step writes"),
    ("question 3 fuse weights", {"recall": 1.0}, "fuse reads hits.recall, which no earlier step writes"),
    ("question 2 bm25 words", "plain", "bm25 reads index.words_plain, which no earlier"),
    ("question 5 extract when", {"kg": "answered"}, "when.kg: expected a list of labels"),
    ("question 5 extract when", {"kg": ["answered"]}, "extract reads replies.kg, which no earlier"),
    ("corpus 2 split", {"child_chars": 200, "tokens": 5}, "corpus[2].split: "),
    ("question 4", ["rerank"], "question[4]: expected one step, as `- verb: {field: value}`, found a list"),
    ("question", [], "the last step must be decide"),
    ("corpuss", [], "unknown field 'corpuss'; did you mean 'corpus'?"),
]


@pytest.mark.parametrize("path, value, words", MISTAKES, ids=[words for _, _, words in MISTAKES])
def test_a_mistake_is_named_with_its_place_and_what_was_meant(tmp_path, path, value, words):
    with pytest.raises(ConfError) as e:
        made(changed([int(k) if k.isdigit() else k for k in path.split()], value), tmp_path)
    assert words in str(e.value)
    assert "made.yaml" in str(e.value) or "models.yaml" in str(e.value)


def test_recall_searches_what_the_corpus_half_embeds(tmp_path):
    tree = changed(("question", 1, "dense", "model"), "all-MiniLM-L6-v2")
    with pytest.raises(
        ConfError, match="dense searches vectors of 'all-MiniLM-L6-v2'; the corpus half embeds"
    ):
        made(tree, tmp_path)


def test_the_digest_is_of_values_and_not_of_names(tmp_path):
    base = made(TREE, tmp_path).digest()
    assert made(changed(("about",), "other words"), tmp_path).digest() == base
    models = yaml.safe_load((ROOT / "conf/models.yaml").read_text())
    models["other-name"] = models["hash-embedder"]
    (tmp_path / "models.yaml").write_text(
        yaml.safe_dump({k: v for k, v in models.items() if "package" not in v})
    )
    renamed = yaml.safe_load(yaml.safe_dump(TREE).replace("hash-embedder", "other-name"))
    assert made(renamed, tmp_path, str(tmp_path / "models.yaml")).digest() == base


@pytest.mark.parametrize(
    "path, value",
    [
        (("question", 1, "dense", "top"), 31),
        (("question", 2, "bm25", "k1"), 1.3),
        (("question", 3, "fuse", "weights"), {"dense": 1.0, "bm25": 2.0}),
        (("question", 5, "extract", "threshold"), 0.6),
        (("corpus", 2, "split", "child_overlap"), 40),
        (("question", 6, "decide"), {"prefer": ["extract"], "lower": True}),
    ],
)
def test_any_value_that_decides_an_output_is_in_the_digest(tmp_path, path, value):
    assert made(changed(path, value), tmp_path).digest() != made(TREE, tmp_path).digest()


def test_a_change_in_the_question_half_leaves_the_corpus_tables(tmp_path):
    base, other = made(TREE, tmp_path), made(changed(("question", 1, "dense", "top"), 31), tmp_path)
    [model] = base.embedders()
    assert other.vectors_table(model) == base.vectors_table(model)
    split = made(changed(("corpus", 2, "split", "child_overlap"), 40), tmp_path)
    assert split.texts_table == base.texts_table
    assert split.passages_digest() != base.passages_digest()
    parsed = made(changed(("corpus", 0, "parse", "via"), "bs4"), tmp_path)
    assert parsed.texts_table != base.texts_table


def test_two_steps_of_one_verb_have_two_names():
    recipe = load_recipe("local", None, CONF)
    names = [s.name for s in recipe.question]
    assert {"fuse", "fuse:final"} < set(names) and len(set(names)) == len(names)


def test_a_passage_longer_than_its_embedder_reads_is_said():
    [line] = load_recipe("weknow-750", None, CONF).unread()
    assert line == "bge-large-en-v1.5 reads 512 tokens: the end of a passage of 750 is not in its vector"
    assert not load_recipe("weknow", None, CONF).unread()


@pytest.mark.parametrize("name", ["local-kg", "db3-task3", "weknow"])
def test_a_ranking_ranks_every_question_and_asks_no_graph_and_no_language_model(name):
    ranking = ranking_of(load_recipe(name, None, CONF))
    asked = replace(ranking, corpus=())
    assert asked.named(GraphRef) == [] and {m.kind for m in asked.models()} == {"embedder", "reranker"}
    assert not any(s.when for s in ranking.question)
    whole = {s.name for s in load_recipe(name, None, CONF).question}
    assert {"dense", "fuse", "rerank"} < {s.name for s in ranking.question} < whole


def test_a_ranking_keeps_the_reply_that_it_searches_by_and_the_gates_of_that_reply(tmp_path):
    tree = copy.deepcopy(TREE)
    said = {"model": "llama-3-8b", "prompt": "crag/vanilla", "max_tokens": 9}
    rewrite = {"generate": {**said, "into": "rewrite", "when": {"kind": ["long"]}}}
    tree["question"][1]["dense"] |= {"query": "{{ replies.rewrite }}", "when": {"rewrite": ["answered"]}}
    kind = {"generate": {**said, "into": "kind", "reply": "label", "labels": ["long"], "default": "short"}}
    tree["question"][:0] = [kind, {"generate": {**said, "into": "chat"}}, rewrite]
    ranking = ranking_of(made(tree, tmp_path))
    assert [s.name for s in ranking.question][:3] == ["generate:kind", "generate:rewrite", "shortlist"]
    gates = {s.name: dict(s.when) for s in ranking.question if s.when}
    assert gates == {"generate:rewrite": {"kind": ("long",)}, "dense": {"rewrite": ("answered",)}}


def test_the_row_key_covers_text_time_and_evidence_in_order():
    a, b = (Citation("q", i, f"u{i}", "", f"page{i}", None, None) for i in range(2))
    base = Question("q", "who?", asked_at="t", citations=(a, b))
    others = [
        replace(base, text="what?"),
        replace(base, body="more"),
        replace(base, asked_at="u"),
        replace(base, citations=(b, a)),
        replace(base, citations=(a, replace(b, page="page9"))),
        replace(base, citations=(a, replace(b, url="elsewhere"))),
        replace(base, citations=None),
    ]
    keys = [row_key(q, "snapshot") for q in (base, *others)]
    assert len(set(keys)) == len(keys)
    assert row_key(replace(base, id="other"), "another snapshot") == keys[0]
    assert row_key(others[-1], "another snapshot") != keys[-1]


def test_what_only_turns_change_is_in_the_keys_of_questions_with_turns_and_in_no_other():
    with_step = load_recipe("local", None, CONF)
    without = replace(with_step, question=with_step.question[1:])
    other = replace(with_step.question[0], step=replace(with_step.question[0].step, chars=99))
    edited = replace(with_step, question=(other, *without.question))
    assert with_step.question[0].name == "stand_alone"
    assert with_step.digest() == without.digest() == edited.digest()
    assert len({r.turns_digest() for r in (with_step, without, edited)}) == 3
    alone = Question("q", "who?", citations=())
    leans = replace(alone, turns=(Turn("user", "what?"),))
    keys = [
        [row_key(q, "s", turns=r.turns_digest()) for r in (without, with_step, edited)]
        for q in (alone, leans)
    ]
    assert len(set(keys[0])) == 1 and keys[0][0] == row_key(leans, "s"), "as before there were turns"
    assert len(set(keys[1])) == 3
    for recipe in (with_step, without, edited):
        assert from_plain(json.loads(json.dumps(to_plain(recipe)))).turns_digest() == recipe.turns_digest()
    chained = chains(with_step)
    assert {n: c for n, c in chained.items() if n != "stand_alone"} == chains(without)
    assert basis(with_step, "decide") == basis(without, "decide")


def test_a_tree_is_checked_like_a_file():
    with pytest.raises(ConfError, match=r"here: question: the last step must be decide"):
        from_tree("x", {"corpus": [], "question": []}, Where("here"), {})


def test_a_variant_is_the_recipe_with_what_it_sets_and_nothing_else(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(TREE, sort_keys=False))
    whole = load_recipe(str(tmp_path / "base.yaml"), None, CONF)
    sets = {"dense.top": 7, "split.child_chars": 333}
    found = made({"about": "another", "like": str(tmp_path / "base.yaml"), "set": sets}, tmp_path)
    before, after = ({s.name: s for s in (*r.corpus, *r.question)} for r in (whole, found))
    assert {n for n in before if before[n] != after[n]} == {"dense", "split"}
    assert (after["dense"].step.top, after["split"].step.child_chars) == (7, 333)
    assert found.about == "another" and whole.digest() != found.digest()
    same = {"dense.top": before["dense"].step.top}
    assert made({"like": str(tmp_path / "base.yaml"), "set": same}, tmp_path).digest() == whole.digest()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"set": {"dens.top": 7}}, "set: 'dens.top': no stage 'dens'; did you mean 'dense'?"),
        ({"set": {"dense.topp": 7}}, "dense: unknown field 'topp'; did you mean 'top'?"),
        ({"set": [1]}, "expected like, the name of a recipe, and set"),
        ({"question": []}, "unknown field 'question' of a variant"),
        ({"like": "weknow-750"}, "like: 'weknow-750' is a variant itself"),
        ({"like": "weknw"}, "no 'weknw' under recipes/"),
    ],
)
def test_a_mistake_in_a_variant_is_named(tmp_path, fields, said):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(TREE, sort_keys=False))
    with pytest.raises(ConfError) as caught:
        made({"like": str(tmp_path / "base.yaml"), "set": {"dense.top": 7}, **fields}, tmp_path)
    assert said in str(caught.value)


def pooled(top):
    dense = {"model": "hash-embedder", "top": 20, "among": ["pool"]}
    steps = [
        {"bm25": {"top": top, "into": "pool"}},
        {"bm25": {"top": 5, "among": ["pool"]}},
        {"dense": dense},
        *TREE["question"][2:],
    ]
    return {**TREE, "question": steps}


def test_a_pool_that_is_smaller_than_what_is_looked_for_in_it_is_refused(tmp_path):
    """WeKnow's K >= M + N."""
    assert made(pooled(25), tmp_path)
    with pytest.raises(ConfError, match=r"bm25:pool keeps 24 passages and bm25 and dense look for 25 among"):
        made(pooled(24), tmp_path)


def test_a_gate_may_be_a_table_by_the_label_of_another_reply():
    table = {"by": "domain", "sports": ["answered"], "else": ["abstained"]}
    [made_stage] = [s for s in from_when(table).question if s.name == "generate:web"]
    assert made_stage.gate_reads() == {"replies.kg", "replies.domain"}
    for domain, label, let_in in [
        ("sports", "answered", True),
        ("sports", "abstained", False),
        ("movie", "abstained", True),
        ("movie", "answered", False),
    ]:
        replies = {"domain": Reply(domain, domain), "kg": Reply("", label)}
        assert made_stage.admits(Question("q", "?", replies=replies)) == let_in
    plain = from_when({"by": "domain", "else": ["abstained"]})
    assert plain.digest() != from_when(table).digest()


@pytest.mark.parametrize("table", [{"by": "domain"}, {"else": ["a"]}, {"by": "domain", "else": "a"}])
def test_a_gate_that_is_no_table_is_refused(table):
    with pytest.raises(ConfError, match=r"when\.kg.*expected a list of labels"):
        from_when(table)


def from_when(labels):
    """Two replies, and a third that a gate on `kg` lets in."""
    path = CONF.find("recipes", "vanilla")
    settings = replace(from_environment(), conf=CONF)
    models = Session(settings, models=str(SUPPORT / "fake_models.yaml")).catalog()
    ask = {"model": "llama-3-8b", "prompt": "crag/vanilla", "max_tokens": 5}
    steps = [{"generate": {**ask, "into": n}} for n in ("domain", "kg")]
    steps.append({"generate": {**ask, "into": "web", "when": {"kg": labels}}})
    tree = {"question": [*steps, {"decide": {"prefer": ["web"]}}]}
    return from_tree("gated", tree, Where(str(path)), resolvers(CONF, models))
