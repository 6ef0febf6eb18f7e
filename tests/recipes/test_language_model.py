"""Recipes with a real language model, SmolLM2-135M-Instruct, in one engine that all tests here share.

Where its weights cannot be fetched, or vLLM or gguf is not installed, the tests say so and are skipped.
"""

import asyncio
import io
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from checkout import ROOT
from real_model import language_model, real_session

from raypipe.contrib.world.write import write
from raypipe.core import config
from raypipe.core.conf import Conf
from raypipe.core.config import Where
from raypipe.core.llm import Message, Regex, Sampling
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.result_table import each
from raypipe.metrics.overlap import contains
from raypipe.models.kit import LocalKit
from raypipe.runs.cluster.cluster_file import Cluster
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store

pytestmark = [pytest.mark.engine, pytest.mark.ray]
CONF = Conf((ROOT / "conf",))
QUESTIONS, PAGES = 4, 2
MOST = 128  # tokens of a reply of `rag`
CHATS = """
import json, os, sys
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, most, chats = json.load(sys.stdin)
    llm = LLM(
        model=folder, dtype="bfloat16", max_model_len=8192, max_num_seqs=32, enforce_eager=True,
        enable_chunked_prefill=False, max_num_batched_tokens=8192, kv_cache_memory_bytes=2**30,
        generation_config="vllm",
    )
    said = llm.chat(chats, SamplingParams(max_tokens=most, temperature=0.0), use_tqdm=False)
    json.dump([r.outputs[0].text for r in said], open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def session():
    return real_session()


@pytest.fixture(scope="module")
def engine(session, local_ray, engine_groups):
    """One engine of the model, started as a job starts it."""
    from raypipe.runs.cluster import connection

    path = CONF.find("clusters", "laptop")
    file = config.build(Cluster, config.read_yaml(path), Where(str(path)))
    made = engine_groups.EngineGroup.of(file, session.recipe("rag").models())
    assert made is not None
    made.preflight(connection.nodes())
    with made.running():
        yield made


@dataclass
class Answered:
    """Some invented questions, answered by `rag` with the model."""

    record: object
    rows: list  # of results.parquet


@pytest.fixture(scope="module")
def answered(session, engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("talking")
    write(folder / "world", QUESTIONS, pages=PAGES, seed=7, page_chars=1500)
    store = Store.create(str(folder / "store"))
    where = WorkerConfig(store.uri, "transformers", "cpu", 2, engine.first_engines)
    pipeline = Pipeline(
        store,
        session.recipe("rag"),
        where,
        TaskSizes(100, QUESTIONS),
        inline,
        Progress(io.StringIO(), silent=True),
    )
    done = evaluate(pipeline, [folder / "world"], folder / "out", EvalOptions("crag", rule="words"))
    return Answered(done.record, list(each(RunFolder(folder / "out").results)))


def replies(answered):
    """The reply of the model to each question, in order."""
    return [next(r for r in row["replies"] if r["step"] == "llm") for row in answered.rows]


def test_a_real_model_answers_from_pages_and_says_the_golds_words(answered):
    assert answered.record.answered_by["llm"] >= 0.9 * QUESTIONS, "the model answers, not the best sentence"
    rows = [r for r in answered.rows if r["golds"]]
    share = sum(contains(r["answer"] or "", r["golds"]) for r in rows) / len(rows)
    assert share >= 0.4, [(r["answer"], r["golds"]) for r in rows]
    marks = answered.record.by_rule
    assert marks.rule == "words" and marks.score.n_unscored == 0 and marks.score.n_miss < QUESTIONS / 2
    assert marks.words < 40, "it answers in a sentence or two"


def test_replies_that_end_by_their_length_are_counted_by_step(answered):
    cut = sum(r["finish"] == "length" for r in replies(answered))
    counted = [(c.step, c.cut, c.replies, c.tokens) for c in answered.record.cut_replies]
    assert counted == ([("generate:llm", cut, QUESTIONS, MOST)] if cut else [])


@pytest.mark.drill
def test_batch_and_vllms_own_chat_reply_the_same_and_single_chats_as_often_as_the_flip_rate_says(
    answered, session, tmp_path
):
    model = language_model(session.recipe("rag"))
    said = replies(answered)
    batch = [r["text"] for r in said]
    flips = answered.record.flips  # of chats that are asked alone, as the endpoint does: bfloat16 rounds
    assert flips.asked == QUESTIONS and flips.differ <= 0.4 * QUESTIONS, flips.sentence()
    out, script = tmp_path / "said.json", tmp_path / "chats.py"
    script.write_text(CHATS)
    given = [model.path, MOST, [list(r["prompt"]) for r in said]]
    subprocess.run([sys.executable, str(script), str(out)], input=json.dumps(given), text=True, check=True)
    own = json.loads(out.read_text())
    assert sum(a == b for a, b in zip(batch, own, strict=True)) >= 0.9 * QUESTIONS


@pytest.mark.drill
def test_a_text_that_repeats_itself_ends_a_reply_only_where_a_step_asks_for_it(session, engine):
    model = language_model(session.recipe("rag"))
    chat = (Message("user", "Write a story."),)
    told = Regex(r"(the cat sat on the mat\. ){20}")  # a reply that must repeat itself

    async def said(repeats):
        generate = LocalKit(None, engines=engine.first_engines).generator(model)
        sampling = Sampling(max_tokens=400, constraint=told, repeats=repeats)
        return (await generate([chat], sampling))[0]

    free, held = asyncio.run(said(0)), asyncio.run(said(3))
    assert free.text == "the cat sat on the mat. " * 20 and free.finish == "stop"
    assert free.text.startswith(held.text) and 3 <= held.text.count("mat") <= 5
    assert held.finish == "length"


@pytest.mark.drill
def test_a_judgement_of_a_real_model_can_be_read(session, engine):
    from raypipe.evaluation.judge import MAX_TOKENS, schema
    from raypipe.recipes.resolve import prompt_file
    from raypipe.text.replies import parse_response

    model = language_model(session.recipe("rag"))
    render = prompt_file(CONF, "judge/official").renderer()
    given = [("who wrote it?", "ann lee", x) for x in ("Ann Lee wrote it.", "Tom Ray", "{nobody}", "I guess")]
    chats = [render(dict(zip(("text", "truth", "prediction"), g, strict=True))) for g in given]

    async def judged():
        generate = LocalKit(None, engines=engine.first_engines).generator(model)
        return await generate(chats, Sampling(max_tokens=MAX_TOKENS, constraint=schema("official")))

    assert all(parse_response(r.text).score in (0, 1) for r in asyncio.run(judged()))


@pytest.mark.drill
def test_calls_of_a_real_model_are_canonical_where_the_grammar_holds_them(session, engine):
    from raypipe.contrib.crag.language.parser import parser
    from raypipe.contrib.crag.language.program import Bad
    from raypipe.core.llm import Grammar
    from raypipe.recipes.resolve import prompt_file

    text = (ROOT / "conf/grammar/calls.lark").read_text(encoding="utf-8")
    render, parse = prompt_file(CONF, "db3/calls-movie").renderer(), parser(text)
    asked = ["who directed velora?", "when was lena brandt born?", "how long is echo?", "what is sugar?"]

    async def written():
        generate = LocalKit(None, engines=engine.first_engines).generator(
            language_model(session.recipe("rag"))
        )
        chats = [render({"text": q}) for q in asked]
        return await generate(chats, Sampling(max_tokens=80, constraint=Grammar(text)))

    for reply in asyncio.run(written()):
        assert not reply.text[0].isdigit(), reply.text
        whole = reply.text if reply.finish == "stop" else reply.text.rpartition("\n")[0]
        assert not any(isinstance(line, Bad) for line in parse(whole).lines), reply.text
        assert reply.text.startswith(("None", "get_", "ALL get_", "AVG(", "sort(")), reply.text
