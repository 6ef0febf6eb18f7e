"""The questions of the invented world: their mix, their wording, and golds that follow from the tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from synth_programs import Graph, answer

from raypipe.contrib.crag.language.answer_rules import RULES
from raypipe.contrib.world.ask.questions import (
    DOMAIN_SHARES,
    SHAPES,
    TYPE_SHARES,
    SynthQuestion,
    pose,
    templates,
)
from raypipe.contrib.world.world.world import World, build_world
from raypipe.contrib.world.write import SCHEMAS, write_tables

MANY = 2_000


@pytest.fixture(scope="module")
def posed(world: World) -> list[SynthQuestion]:
    return [pose(world, i) for i in range(MANY)]


@pytest.fixture(scope="module")
def graph(world: World, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = tmp_path_factory.mktemp("kg")
    write_tables(world, folder)
    return Graph(folder)


def test_domains_types_and_dynamisms_have_their_shares(posed: list[SynthQuestion]) -> None:
    domains, types = Counter(q.template.domain for q in posed), Counter(q.template.type for q in posed)
    for name, share in DOMAIN_SHARES.items():
        assert domains[name] / MANY == pytest.approx(share, abs=0.01)
    for name, share in TYPE_SHARES.items():
        assert types[name] / MANY == pytest.approx(share, abs=0.01)
    changes = Counter(q.template.dynamism for q in posed)
    assert set(changes) == {"static", "slow-changing", "fast-changing", "real-time"}
    assert min(changes.values()) > 0.07 * MANY
    assert sum(q.withheld for q in posed) / MANY == pytest.approx(0.1, abs=0.03)


def test_twenty_questions_already_touch_every_domain_and_most_types(posed: list[SynthQuestion]) -> None:
    assert len({q.template.domain for q in posed[:20]}) == 5
    assert len({q.template.type for q in posed[:20]}) >= 6


def test_every_template_is_asked_in_every_phrasing(posed: list[SynthQuestion]) -> None:
    seen = {(q.template.id, q.phrasing) for q in posed}
    assert {t.id for t in templates()} == {name for name, _ in seen}
    missing = {(t.id, i) for t in templates() for i in range(len(t.phrasings))} - seen
    assert len(missing) < 0.05 * sum(len(t.phrasings) for t in templates())


def test_phrasings_are_at_least_three_and_all_different() -> None:
    for template in templates():
        assert len(template.phrasings) >= 3, template.id
        assert len(set(template.phrasings)) == len(template.phrasings), template.id


def test_every_shape_has_its_wording() -> None:
    assert {t.id for t in templates()} == {f"{d}.{name}" for d, shapes in SHAPES.items() for name in shapes}


@pytest.mark.slow
def test_every_program_gives_its_gold_by_independent_execution(
    posed: list[SynthQuestion], graph: Graph
) -> None:
    checked = 0
    for q in posed:
        if not q.kg_answerable:
            continue
        program, rule = q.asked.program, q.asked.rule
        assert rule in RULES
        lines = graph.run(program, q.template.domain, q.now.stamp)
        got = answer(rule, program, lines, q.now.stamp)
        assert got in (q.asked.answer, *q.asked.alternatives), (q.text, program, lines)
        checked += 1
    assert checked > 0.8 * MANY


def test_a_false_premise_finds_nothing_in_the_tables(posed: list[SynthQuestion], graph: Graph) -> None:
    false = [q for q in posed if q.premise_false]
    assert 0.09 * MANY < len(false) < 0.13 * MANY
    for q in false:
        assert q.asked.answer == "invalid question"
        assert not q.kg_answerable
        lines = graph.run(q.asked.program, q.template.domain, q.now.stamp)
        assert answer("premise", q.asked.program, lines, q.now.stamp) == "invalid question", q.text


def test_some_golds_by_columns(
    posed: list[SynthQuestion], graph: Graph, world: World, tmp_path: Path
) -> None:
    """Without any program: straight from the Parquet columns."""
    write_tables(world, tmp_path)
    movie, cast = pq.read_table(tmp_path / "movie.parquet"), pq.read_table(tmp_path / "cast.parquet")
    price, company = pq.read_table(tmp_path / "price.parquet"), pq.read_table(tmp_path / "company.parquet")
    checked = Counter[str]()
    for q in posed:
        slots, name = q.asked.slots, q.template.id
        if name == "movie.release_date":
            want = movie.filter(pc.equal(movie["title"], slots["m"]))["release_date"][0].as_py()
        elif name == "movie.films_acted":
            want = str(cast.filter(pc.equal(cast["name"], slots["p"])).num_rows)
        elif name == "finance.mean_close":
            hit = pc.or_(pc.equal(company["short_name"], slots["c"]), pc.equal(company["ticker"], slots["c"]))
            ticker = company.filter(hit)["ticker"][0]
            words = q.asked.program.split('"')
            inside = pc.and_(
                pc.greater_equal(price["date"], words[3]), pc.less_equal(price["date"], words[5])
            )
            mean = pc.mean(price.filter(pc.and_(inside, pc.equal(price["ticker"], ticker)))["close"]).as_py()
            want = f"${mean:.2f}"
        else:
            continue
        assert q.asked.answer == want, q.text
        checked[name] += 1
    assert len(checked) == 3 and min(checked.values()) > 5


def test_sentences_that_state_an_answer_hold_it(posed: list[SynthQuestion]) -> None:
    for q in posed:
        if not q.premise_false:
            for sentence in q.asked.said:
                golds = (q.asked.answer, *q.asked.alternatives)
                assert any(g in sentence.lower() for g in golds), (q.text, golds, sentence)


def test_question_and_answer_are_lower_case_and_filled_in(posed: list[SynthQuestion]) -> None:
    for q in posed:
        assert q.text == q.text.lower() and "{" not in q.text
        assert all(a == a.lower() and a for a in (q.asked.answer, *q.asked.alternatives)), q.text


def test_tables_have_their_columns_and_agree_with_one_another(world: World, tmp_path: Path) -> None:
    counts = write_tables(world, tmp_path)
    assert set(counts) == set(SCHEMAS)
    tables = {name: pq.read_table(tmp_path / f"{name}.parquet") for name in counts}
    for name, table in tables.items():
        assert table.num_rows == counts[name] > 0
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == SCHEMAS[name]
    titles, people = set(tables["movie"]["title"].to_pylist()), set(tables["person"]["name"].to_pylist())
    for link in ("cast", "crew"):
        assert set(tables[link]["movie_name"].to_pylist()) <= titles
        assert set(tables[link]["name"].to_pylist()) <= people
    assert set(tables["oscar"]["film"].to_pylist()) <= titles
    assert set(tables["price"]["ticker"].to_pylist()) == set(tables["company"]["ticker"].to_pylist())
    price = tables["price"]
    assert pc.all(pc.less_equal(price["low"], price["close"])).as_py()
    assert pc.all(pc.less_equal(price["close"], price["high"])).as_py()
    artists = set(tables["artist"]["name"].to_pylist())
    assert set(tables["song"]["author"].to_pylist()) == artists
    assert set(tables["billboard"]["song"].to_pylist()) <= set(tables["song"]["name"].to_pylist())
    teams = set(tables["team"]["name"].to_pylist())
    assert set(tables["soccer_game"]["opponent"].to_pylist()) <= teams
    games = {(r["team"], r["date"]): r for r in tables["soccer_game"].to_pylist()}
    assert all(games[r["opponent"], r["date"]]["GF"] == r["GA"] for r in games.values())


def test_no_name_is_given_twice(world: World) -> None:
    names = [
        *(m.title for m in world.film.movies),
        *(p.name for p in world.film.people),
        *(c.name for c in world.market.companies),
        *(a.name for a in world.music.artists),
        *(s.name for s in world.music.songs),
        *(e.name for e in world.places.entities if e.kind != "company"),
    ]
    assert len({n.lower() for n in names}) == len(names)


@pytest.mark.slow
def test_another_seed_is_another_world(world: World) -> None:
    other = build_world(2)
    assert not {m.title for m in world.film.movies} & {m.title for m in other.film.movies}
    assert pose(other, 3).text != pose(world, 3).text
