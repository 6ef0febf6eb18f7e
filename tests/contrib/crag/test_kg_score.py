"""`raypipe kg score`: written calls against gold programs, to the letter and by what both give."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raypipe.api.cli.main import main
from raypipe.contrib.crag.api.kg_score import score_calls
from raypipe.contrib.crag.server import serve
from raypipe.contrib.crag.tables import load
from raypipe.contrib.world.write import write

TIME = "03/05/2024, 23:18:31 PT"
TWO = 'get_movie("velora")["year"]\nget_movie("low tide")["year"]'
GOLDS = {
    "when did velora come out?": ('get_movie("velora")["year"]', "value"),
    "which is newer, velora or low tide?": (TWO, "most"),
    "who shot velora?": ("None", ""),
    "when did zzz come out?": ('get_movie("zzz")["year"]', "value"),
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kg")
    days = ["1994-02-01", "2001-05-06", "1994-03-04"]
    movies = {"title": ["Velora", "Low Tide", "Twin"], "year": [1994, 2001, 1994], "length": [90, 101, 95]}
    movies |= {"release_date": days, "id": [1, 2, 3]}
    pq.write_table(pa.table(movies), folder / "movie.parquet")
    return folder


@pytest.fixture
def scored(graph, tmp_path):
    """Scores programs, in the order of GOLDS; None: no line."""

    def run(*written, where=None, golds=GOLDS):
        gold = [{"query": q, "query_time": TIME, "calls": c, "rule": r} for q, (c, r) in golds.items()]
        said = [{"query": q, "calls": c} for q, c in zip(golds, written, strict=False) if c is not None]
        for name, lines in (("gold", gold), ("said", said)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        return score_calls(tmp_path / "gold.jsonl", tmp_path / "said.jsonl", where or graph)

    return run


def marks(found):
    return [(r["exact"], r["result"], r["answer"]) for r in found.rows()]


def test_a_program_may_be_the_golds_to_the_letter_by_its_values_or_by_its_answer(scored):
    cases = {
        'GET_MOVIE( "velora" )[year]': (True, True, True),
        'get_movie("twin")["year"]': (False, True, True),
        'get_movie("velora")["length"]': (False, False, False),
        'get_movie("vellora")["year"]\nnot a call(': (False, False, False),
        "None": (False, False, False),
    }
    for calls, expected in cases.items():
        assert marks(scored(calls, golds=dict([*GOLDS.items()][:1]))) == [expected], calls


def test_independent_calls_may_come_in_any_order_and_a_rule_tells_whose_value_it_is(scored):
    golds = {q: g for q, g in GOLDS.items() if "newer" in q}
    turned = "\n".join(reversed(TWO.splitlines()))
    assert marks(scored(turned, golds=golds)) == [(False, True, True)]
    other = TWO.replace("velora", "twin")
    assert marks(scored(other, golds=golds)) == [(False, True, True)], "the newer one is the same"
    assert marks(scored(TWO.replace("low tide", "velora"), golds=golds)) == [(False, False, False)]


def test_no_calls_are_right_where_none_fit_and_a_missing_prediction_is_wrong(scored):
    found = scored(None, TWO, "None", None)
    assert marks(found)[:3] == [(False, False, False), (True, True, True), (True, True, None)]
    tree = found.to_dict()
    assert (tree["questions"], tree["missing"], tree["extra"]) == (4, 2, 0)
    rates = {m["measure"]: (m["right"], m["of"]) for m in tree["measures"]}
    assert rates == {"parsed": (2, 4), "exact": (2, 4), "result": (2, 3), "answer": (1, 2)}


def test_a_gold_that_fails_on_the_graph_is_not_scored_by_result(scored):
    calls = 'get_movie("zzz")["year"]'
    found = scored(None, None, None, calls)
    assert marks(found)[3] == (True, None, None)
    assert [r["why"] for r in found.rows()][3] == "not in the graph: zzz"


def test_a_server_scores_as_its_tables_do(scored, graph):
    written = ('get_movie("twin")["year"]', TWO, "None", None)
    with serve(load(graph)) as url:
        assert marks(scored(*written, where=url)) == marks(scored(*written))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write(folder, 12, pages=1, seed=4, page_chars=1000)
    return folder


@pytest.mark.drill
@pytest.mark.slow
def test_golds_as_predictions_are_all_right_by_slices_too(world, tmp_path, capsys):
    [file] = world.glob("questions*.jsonl")
    lines = [json.loads(x) for x in file.read_text("utf-8").splitlines()]
    said = [{"id": x["interaction_id"], "calls": x["kg_program"] or "None"} for x in lines]
    said.append({"id": "of another set", "calls": "None"})
    (tmp_path / "said.jsonl").write_text("".join(json.dumps(x) + "\n" for x in said))
    words = ["kg", "score", "--gold", str(world), "--predictions", str(tmp_path / "said.jsonl")]
    assert main([*words, "--graph", str(world / "kg"), "--out", str(tmp_path / "out.jsonl"), "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["questions"], tree["missing"], tree["extra"]) == (12, 0, 1)
    assert all(m["rate"] == 1.0 and m["interval"][0] < 1 for m in tree["measures"])
    assert {s["label"] for s in tree["slices"]} == {"domain", "question_type"}
    out = [json.loads(x) for x in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert len(out) == 12 and all(x["exact"] and x["calls"] == x["gold"] for x in out)
    assert main([*words, "--graph", str(world / "kg")]) == 0
    shown = capsys.readouterr().out
    assert "exact" in shown and "1 predictions without a gold" in shown


GOLD = '{"query": "a", "calls": %s, "query_time": "%s"}'


def test_where_the_gold_gives_nothing_there_is_no_result_to_compare_but_for_a_false_premise(scored):
    late = 'get_movie_person_oscar("velora", None, None)["name"]'
    for rule, expected in (("value", (False, None, None)), ("premise", (False, False, True))):
        found = scored('get_movie("twin")["budget"]', golds={"who won?": (late, rule)})
        assert marks(found) == [expected], "nothing of another film is not the same nothing"


@pytest.mark.parametrize(
    ("gold", "said", "says"),
    [
        ("[]", "{}", "expected a JSON object"),
        ('{"query": "a"}', "{}", "query, query_time and calls"),
        (GOLD % ('"None", "rule": "guess"', TIME), "{}", "a rule of value"),
        (GOLD % ('"None"', TIME), '{"calls": "None"}', "calls, and id or query"),
        (GOLD % ("3", TIME), "{}", "text as 'calls'"),
        ("", "{}", "expected JSON lines of golds, found none"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(graph, tmp_path, capsys, gold, said, says):
    (tmp_path / "g.jsonl").write_text(gold + "\n")
    (tmp_path / "p.jsonl").write_text(said + "\n")
    words = ["--gold", str(tmp_path / "g.jsonl"), "--predictions", str(tmp_path / "p.jsonl")]
    assert main(["kg", "score", *words, "--graph", str(graph)]) == 3
    assert says in " ".join(capsys.readouterr().err.split())
