"""The recipes with a language model: every constant is the paper's, and they run from pages to answers."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from checkout import ROOT, SUPPORT

from raypipe import readers
from raypipe.api.session import load_recipe
from raypipe.core import arrow, config
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.read_recipe import from_tree
from raypipe.recipes.resolve import prompt_file, resolvers
from raypipe.store.index import MemoryIndex
from raypipe.store.memo.memo import MemoryMemo

CONF = Conf((ROOT / "conf",))
MODELS = str(SUPPORT / "fake_models.yaml")
PROMPTS = sorted(
    p.relative_to(ROOT / "conf/prompts").with_suffix("").as_posix()
    for p in (ROOT / "conf/prompts").rglob("*.yaml")
)
ALL = sorted(p.stem for p in (ROOT / "conf/recipes").glob("*.yaml"))
RECIPES = ("vanilla", "crag-baseline", "db3-task1-700", "db3-task1-2000")


def recipe(name):
    return load_recipe(name, MODELS, CONF)


def steps(name):
    """Stage name -> step, of both halves."""
    found = recipe(name)
    return {s.name: s.step for s in (*found.corpus, *found.question)}


def test_the_published_llm_runs_in_half_precision_at_a_pinned_commit():
    models = config.read_yaml(CONF.file("models.yaml"))
    assert models["llama-3-8b"]["dtype"] == "float16"
    assert models["llama-3-8b"]["repo"] == "meta-llama/Meta-Llama-3-8B-Instruct"
    assert all(len(models[n]["revision"]) == 40 for n in ("llama-3-8b", "llama-2-tokens"))


RULES = {  # rule of p_basic and p_ctrl -> words of ours that carry it
    "helpful": "helpful",
    "honest": "honest",
    "word limit": "at most {{ words }} words",
    "time": "Now is {{ asked_at }}",
    "concise": "concisely",
    "context and prior knowledge": "from the context information and from what you know",
    "one line": "single\n  line".replace("\n  ", "\n"),
    "period": "end it with a period",
    "false premise": "output exactly: invalid question",
    "worked example of an album": "There\nnever was such an album",
    "unsure": "output exactly: i don't know",
}
BASIC = {r for r in RULES if r not in ("false premise", "worked example of an album", "unsure")}


@pytest.mark.parametrize("name, rules", [("db3/p_basic", BASIC), ("db3/p_ctrl", set(RULES) - {"period"})])
def test_p_basic_and_p_ctrl_have_the_rules_of_the_paper_and_no_others(name, rules):
    prompt = prompt_file(CONF, name)
    text = " ".join(f"{prompt.system}\n{prompt.user}".split())
    found = {rule for rule, words in RULES.items() if " ".join(words.split()) in text}
    assert found == rules


@pytest.mark.parametrize("name", ALL)
def test_no_prompt_calls_facts_of_a_graph_or_public_data_taken_from_the_web(name):
    for stage in recipe(name).question:
        if getattr(stage.step, "first", ()):
            for prompt in stage.step.prompt.values():
                said = " ".join(f"{prompt.system} {prompt.user}".split())
                assert "web" not in said or "Facts from a knowledge graph" in said, stage.name


@pytest.mark.parametrize("words", [70, 30])
@pytest.mark.parametrize("name", ["db3/p_basic", "db3/p_ctrl"])
def test_the_word_limits_of_web_and_public_data_answers_fill_the_same_prompt(name, words):
    prompt = prompt_file(CONF, name)
    chat = prompt.renderer()({**dict.fromkeys(prompt.variables, ""), "words": str(words)})
    assert f"at most {words} words" in chat[0].content


@pytest.mark.parametrize("name", PROMPTS)
def test_every_prompt_renders_and_puts_the_context_before_the_question(name):
    prompt = prompt_file(CONF, name)
    chat = prompt.renderer()({v: f"({v})" for v in prompt.variables})
    text = "\n".join(m.content for m in chat)
    assert all(f"({v})" in text for v in prompt.variables)
    if "context" in prompt.variables:
        assert "{{ context }}" not in prompt.system
        assert text.index("(context)") < text.index("(text)")
        before = text[: text.index("(context)")]
        assert not [v for v in prompt.variables if v not in ("words", "context") and f"({v})" in before]


def test_the_prompts_that_the_published_systems_need_are_here():
    db3 = {
        "domain",
        "entity-movie",
        "entity-finance",
        "p_basic",
        "p_ctrl",
        "p_check_gt",
        "p_context",
        "kg-answer",
    }
    assert {f"db3/{n}" for n in db3} <= set(PROMPTS)
    assert {"crag/vanilla", "crag/rag", "weknow/confidence", "judge/official"} <= set(PROMPTS)


def answered(name, world, batch, memo=None):
    """Answers without a store, `batch` questions at a time, and what was counted."""
    rows = list(readers.open([world], "synth", readers.ReadCounts()))
    seen: set[str] = set()
    sources = [s for r in rows for s in readers.unseen(r.sources, seen)]
    found, kit = recipe(name), LocalKit(None, "transformers")

    async def run():
        corpus = await CorpusExecutor(found, kit)(arrow.corpus_table(sources))
        vectors = {model_identity(m): corpus.vectors[m.name] for m in found.embedders()}
        index = MemoryIndex(corpus.texts, corpus.passages, vectors)
        ask = QuestionExecutor(found, kit.with_index(index), memo)
        questions = [r.question for r in rows]
        out = [q for i in range(0, len(rows), batch) for q in await ask(questions[i : i + batch])]
        return out, ask.counts

    return asyncio.run(run())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_answers_every_question_alike_in_one_batch_and_one_by_one(name, world):
    memo = MemoryMemo()
    together, counts = answered(name, world, batch=6, memo=memo)
    assert len(together) == 6
    assert {q.outcome for q in together} <= {"answered", "abstained", "false_premise"}
    stage = next(n for n in counts if n.startswith("generate"))
    assert counts[stage].calls.replies.computed == 6
    assert counts[stage].calls.tokens.prompt > 0
    apart, counts = answered(name, world, batch=1, memo=memo)
    assert apart == together
    assert counts[stage].calls.replies.computed == 0
    assert counts[stage].calls.replies.cached == 6


def test_the_two_db3_recipes_differ_in_what_the_paper_lets_vary_alone():
    one, two = steps("db3-task1-700"), steps("db3-task1-2000")
    assert {n for n in one if one[n] != two[n]} == {"split", "rerank"}
    assert replace(two["split"], parent_chars=700, parent_overlap=150) == one["split"]
    assert replace(two["rerank"], top=10) == one["rerank"]


def tree(**fields):
    generate = {"model": "llama-3-8b", "prompt": "crag/vanilla", "into": "llm", "max_tokens": 50, **fields}
    return {"question": [{"generate": generate}, {"decide": {"prefer": ["llm"]}}]}


def made(folders=CONF, **fields):
    file = Path(MODELS)
    from raypipe.models import catalog

    models = catalog.read(config.read_yaml(file), file)
    return from_tree("r", tree(**fields), config.Where("r.yaml"), resolvers(folders, models))


def test_the_text_of_a_prompt_is_identity_and_its_place_is_not(tmp_path):
    text = (ROOT / "conf/prompts/crag/vanilla.yaml").read_text()
    for name, change in [("same", text), ("other", text.replace("few words", "many words"))]:
        (tmp_path / f"prompts/{name}").mkdir(parents=True)
        (tmp_path / f"prompts/{name}/p.yaml").write_text(change)
    folders = Conf((tmp_path, *CONF.folders))
    assert made(folders, prompt="same/p").digest() == made().digest()
    assert made(folders, prompt="other/p").digest() != made().digest()


@pytest.mark.parametrize(
    "text, said",
    [
        ("variables: [text]\nuser: '{{ text }} {{ contxt }}'", "p.yaml: user: it uses 'contxt'"),
        ("variables: [text, body]\nuser: '{{ text }}'", "p.yaml: variables: 'body' is declared and used in"),
        ("variables: [text]\nuser: '{{ text.upper() }}'", "p.yaml: user: it is no prompt template: it calls"),
        ("variables: [text]\nuser: '{{ text | first }}'", "p.yaml: user: it is no prompt template: No first"),
        ("variables: [text]\nuser: '{% include text %}'", "p.yaml: user: it is no prompt template"),
        ("variables: [text]\nsystem: '{{ '\nuser: '{{ text }}'", "p.yaml: system: it is no prompt template"),
        ("user: ''", "p.yaml: user: expected a message, found none"),
        ("variables: []\nuserr: x", "p.yaml: unknown field 'userr'; did you mean 'user'?"),
        (
            "variables: [text, gold]\nuser: '{{ text }} {{ gold }}'",
            "prompt: it uses 'gold', which is no field",
        ),
    ],
)
def test_a_prompt_that_could_fail_on_a_row_is_refused_when_the_recipe_is_read(tmp_path, text, said):
    (tmp_path / "prompts/x").mkdir(parents=True)
    (tmp_path / "prompts/x/p.yaml").write_text(text)
    with pytest.raises(ConfError) as caught:
        made(Conf((tmp_path,)), prompt="x/p")
    assert said in str(caught.value)
    assert "question[0].generate" in str(caught.value)


@pytest.mark.parametrize("name", ["../recipes/local", "/etc/passwd", "crag/../../x", "crag/vanila"])
def test_a_prompt_is_looked_for_under_prompts_alone(name):
    with pytest.raises(ConfError, match=r"no .* under prompts/"):
        made(prompt=name)


def test_an_adapter_that_the_model_lacks_is_missing_and_the_error_has_the_command_that_makes_it():
    with pytest.raises(
        ModelMissing, match=r"has no adapter 'calls'; it has db3-calls, .*raypipe finetune calls"
    ):
        made(adapter="calls")


@pytest.mark.parametrize("name", [n for n in ALL if n.endswith("-tuned")])
def test_a_tuned_recipe_is_its_base_with_adapters_and_shares_its_tables(name):
    tuned, base = recipe(name), recipe(name.removesuffix("-tuned"))
    differ = [s.name for s, t in zip(tuned.question, base.question, strict=True) if s.digest() != t.digest()]
    assert differ == (
        ["generate:calls", "generate:kg", "generate:web"] if "task3" in name else ["generate:web"]
    )
    assert tuned.passages_digest() == base.passages_digest()
    with pytest.raises(ModelMissing, match=r"Get it with: raypipe finetune db3-(web|calls)") as missing:
        load_recipe(name, None, CONF)
    assert missing.value.exit_code == 4


def test_an_adapter_is_a_field_that_a_sweep_can_set():
    points = [
        load_recipe("db3-task1-700", MODELS, CONF, sets=[f"generate:web.adapter={name}"])
        for name in ("db3-web", "db3-kg")
    ]
    chosen = [s.step.adapter.values() for p in points for s in p.question if s.name == "generate:web"]
    assert chosen == [("db3-web",), ("db3-kg",)] and len({p.digest() for p in points}) == 2


def test_an_adapter_of_a_model_changes_no_table_that_counts_its_tokens(tmp_path):
    (tmp_path / "models.yaml").write_text(
        "llama-3-8b: {kind: generator, loader: scripted, max_model_len: 8192}\n"
    )
    without = config.read_yaml(Path(MODELS)) | config.read_yaml(tmp_path / "models.yaml")
    (tmp_path / "models.yaml").write_text(yaml.safe_dump(without))
    plain = load_recipe("db3-task1-700", str(tmp_path / "models.yaml"), CONF)
    assert plain.passages_digest() == recipe("db3-task1-700").passages_digest()


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"reply": "label"}, "labels: expected with reply: label"),
        ({"reply": "labels"}, "expected one of plain, label, certainty, json, confidence, calls"),
        ({"labels": ["a"]}, "labels: expected with reply: label"),
        ({"confident": "high"}, "confident: expected only with reply: confidence"),
        ({"confident": "sure", "reply": "confidence"}, "expected one of low, medium, high"),
        ({"fill": {"words": 70}}, "fill: 'words' is used by no prompt"),
        ({"context_tokens": 10}, "context_tokens: expected a prompt that uses context"),
        (
            {"model": "bge-base-en-v1.5"},
            "model: expected a generator, found 'bge-base-en-v1.5' of kind embedder",
        ),
        ({"adapter": 3}, "adapter: expected the name of an adapter"),
        ({"temperature": 3}, "temperature: expected 0 to 2"),
        ({"max_tokens": 8192}, "max_tokens: 'llama-3-8b' has room for 8192 tokens of prompt and reply"),
        (
            {"prompt": "db3/p_basic", "fill": {"words": 1}, "context_tokens": 8000, "max_tokens": 500},
            "found 500 of reply and 8000 of context",
        ),
        ({"prompt": {"by": "domain", "movie": "crag/vanilla"}}, "expected `else` next to the labels"),
        ({"prompt": {"by": "domain", True: "crag/vanilla", "else": "crag/vanilla"}}, "put it in quotes"),
        ({"prompt": "db3/p_basic"}, "prompt: it uses 'words', which is no field of a question"),
        ({"grammar": "nowhere"}, "no 'nowhere' under grammar/"),
        ({"choices": ["a"], "schema": {"type": "boolean"}}, "at most one of choices, schema and grammar"),
        ({"choices": ["a", "a"]}, "choice: expected distinct options"),
        ({"schema": {"type": "object"}}, "generate.schema: JSON schema: it allows replies of any length"),
        ({"schema": {"type": "no such"}}, "generate.schema: JSON schema: it does not compile"),
    ],
)
def test_a_mistake_in_generate_is_named_when_the_recipe_is_read(fields, said):
    with pytest.raises(ConfError) as caught:
        made(**fields)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text, said",
    [("start: nowhere", "it does not compile"), ('start: "a"+', "it allows replies of any length")],
)
def test_a_grammar_that_no_engine_could_hold_to_is_refused_when_the_recipe_is_read(tmp_path, text, said):
    (tmp_path / "grammar").mkdir()
    (tmp_path / "grammar/odd.lark").write_text(text)
    with pytest.raises(ConfError, match=r"generate\.grammar: grammar: ") as caught:
        made(Conf((tmp_path, *CONF.folders)), grammar="odd")
    assert said in str(caught.value)


def test_a_tokenizer_that_was_not_fetched_leaves_its_work_to_the_one_that_its_entry_names(tmp_path):
    from raypipe.models import catalog

    tree = {
        "llama-3-8b": {"kind": "generator", "loader": "scripted", "max_model_len": 8192},
        "llama-2-tokens": {
            "kind": "tokenizer",
            "loader": "tokens",
            "path": "fetched",
            "fallback": "llama-3-8b",
        },
    }
    models = catalog.read(tree, tmp_path / "models.yaml")
    resolve = resolvers(CONF, models)

    def cutter():
        path = CONF.find("recipes", "vanilla")
        found = from_tree("vanilla", config.read_yaml(path), config.Where(str(path)), resolve)
        return next(s.step for s in found.question if s.name == "decide").tokenizer.name

    assert cutter() == "llama-3-8b"
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched/tokenizer.json").write_text("{}")
    assert cutter() == "llama-2-tokens"


def test_a_reply_that_a_prompt_or_a_table_names_must_have_been_made_before():
    prompt = {"by": "domain", "movie": "crag/vanilla", "else": "crag/rag"}
    with pytest.raises(ConfError, match=r"generate:llm reads (index|order|replies\.domain)"):
        made(prompt=prompt)
    with pytest.raises(ConfError, match=r"generate:llm reads replies\.kg, which no earlier step writes"):
        made(prompt={"user": "{{ replies.kg }}", "variables": ["replies.kg"]})
