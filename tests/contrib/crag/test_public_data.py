"""Public data: what a table says of a year or a name, and how a name may be written."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import publicdata
import pytest

from raypipe.contrib.crag.public_data import FactsTable, build, facts_version, open_facts
from raypipe.contrib.crag.records import MOST_NEAR, Near
from raypipe.contrib.crag.references import FactsRef
from raypipe.core.errors import ConfError, DataError
from raypipe.models.kit import LocalKit


def about(table, name, levels, company=False, near=None):
    return asyncio.run(table.about(name, levels, company, near))


@pytest.fixture
def shares():
    table = FactsTable()
    table.add("tarn", None, ("TRNH", "Tarn Holdings Inc. Common Stock"))
    table.add("brask", None, ("BRF", "Brask Foods & Sons Company"))
    table.add("2012 a", 2012, ())
    table.add("2012 b", 2012, ())
    return table


def opened(name, path):
    """The table in a file, as a recipe that names it opens it."""
    return open_facts(FactsRef(name, str(path), facts_version(path)))


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("TRNH", "tarn"),
        ("trnh", "tarn"),
        ("Tarn Holdings Inc. Common Stock", "tarn"),
        ("tarn holdings", "tarn"),
        ("brask foods and sons", "brask"),
        ("the brask sons foods", "brask"),  # words in another order
        ("brask steel and coal", None),
        ("none", None),
        ("", None),
    ],
)
def test_a_company_is_found_by_ticker_by_name_and_by_its_words(shares, written, found):
    told = about(shares, written, ("exact", "tokens"), company=True)
    assert told == (() if found is None else (found,))


FILMS = ("Toy Story 2", "Iron Man", "Monsters, Inc.", "The Lantern Maker")


@pytest.mark.parametrize(
    ("written", "exact", "substring", "tokens"),
    [
        ("toy story 2", "Toy Story 2", "Toy Story 2", "Toy Story 2"),
        ("Iron-Man", "Iron Man", "Iron Man", "Iron Man"),
        ("toy story 3", None, None, "Toy Story 2"),
        ("iron man 2", None, "Iron Man", "Iron Man"),
        ("lantern maker", None, "The Lantern Maker", "The Lantern Maker"),
        ("monsters", None, "Monsters, Inc.", "Monsters, Inc."),  # a title's "Inc." is no legal form
        ("a film of nobody", None, None, None),
    ],
)
def test_a_film_is_found_by_its_exact_title_or_as_loosely_as_a_rule_says(written, exact, substring, tokens):
    table = FactsTable()
    for title in FILMS:
        table.add(title, None, (title,))
    for levels, found in [(("exact",), exact), (("exact", "substring"), substring), (("tokens",), tokens)]:
        assert about(table, written, levels) == (() if found is None else (found,)), levels


def test_a_film_is_found_by_what_its_title_means_where_the_rule_says_so_and_only_when_near_enough():
    table, asked = FactsTable(), []
    for title in FILMS:
        table.add(title, None, (title,))

    def near(model, meant, least):
        async def vectors(names):
            asked.append(list(names))
            return np.array([[1.0, 0.0] if n in meant else [0.6, 0.8] for n in names], np.float32)

        return Near(model, vectors, least)

    toys, lamps = near("a", ("Toy Story 2", "the toys again"), 0.9), near("b", ("The Lantern Maker",), 0.5)
    levels = ("exact", "embedding")
    assert about(table, "iron man", levels, near=toys) == ("Iron Man",) and asked == []
    assert about(table, "the toys again", levels, near=toys) == ("Toy Story 2",)
    assert asked == [list(FILMS), ["the toys again"]]
    assert about(table, "The Lantern", levels, near=lamps) != (), "each model has vectors of its own"
    assert asked[2:] == [list(FILMS), ["The Lantern"]]
    far = near("a", ("Toy Story 2",), 0.9)
    assert about(table, "a film of 1950", ("embedding",), near=replace(far, least=1.1)) == ()
    assert asked[4:] == [["a film of 1950"]], "titles are embedded once for each model"
    for title in range(MOST_NEAR):
        table.add("x", None, (f"film {title}",))
    with pytest.raises(ConfError, match="expected at most 50000 names of a kind that is linked by embedding"):
        about(table, "another", levels, near=toys)


def test_a_year_gives_its_sentences_in_order(shares):
    assert shares.of_year(2012) == ("2012 a", "2012 b") and shares.of_year(1999) == ()


def test_lines_without_what_they_need_are_counted_and_the_others_are_kept(tmp_path):
    head = "year_film,year_ceremony,ceremony,category,name,film,winner\n"
    lines = (
        "2011,2012,84,ACTOR,Ann,Film,True",
        "x,,,,,,",
        "2011,2012,84,,Bo,,False",
        "2011,2012,84,DIRECTING,,Film,1",
    )
    (tmp_path / "o.csv").write_text("\ufeff" + head + "\n".join(lines), encoding="utf-8")
    built = build(tmp_path / "o.csv", "oscar", tmp_path / "out/o.parquet")
    assert (built.facts, built.lines, built.skipped) == (2, 4, 2)
    table = opened("oscar", tmp_path / "out/o.parquet")
    assert table.of_year(2012) == (
        "In 2012 at the 84th Academy Awards, Ann won the Oscar in the category ACTOR for the film Film.",
        "In 2012 at the 84th Academy Awards, Film won the Oscar in the category DIRECTING.",
    )


def test_every_kind_can_be_told_as_the_paper_has_it(tmp_path):
    told = {
        "oscar": "The year film is 2011. The year ceremony is 2012. The ceremony is 84. The category is "
        "ACTOR IN A LEADING ROLE. The name is Jean Dujardin. The film is The Artist. The winner is True.",
        "grammy": "The year is 2012. The title is 54th Annual GRAMMY Awards (2011). The category is Song Of "
        "The Year. The nominee is Rolling In The Deep. The workers is Adele Adkins & Paul Epworth, "
        "songwriters (Adele). The winner is True.",
        "stocks": "The symbol is TRNH. The name is Tarn Holdings Inc. Common Stock. The last sale is $41.2. "
        "The market cap is 4120000000. The eps is 2.06. The pe ratio is 20.",
        "movielens": "The adult is False. The budget is 30000000. The genres is Animation. The original "
        "title is Toy Story. The release date is 1995-10-30. The runtime is 81.0. The title is Toy Story. "
        "the Director is J. Lasseter; Tom Hanks plays Woody;",
    }
    for kind, text in publicdata.tables(tmp_path, "--sentences", "attributes").items():
        table = opened(kind, Path(text))
        found = (
            table.of_year(2012)
            if kind in ("oscar", "grammy")
            else about(
                table,
                {"stocks": "trnh", "movielens": "toy story"}[kind],
                ("exact",),
                company=kind == "stocks",
            )
        )
        assert told[kind] in found, kind


def test_what_is_no_table_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="cannot be read as a table of facts"):
        facts_version(tmp_path / "x")
    with pytest.raises(ConfError, match="--graph oscar=FILE"):
        open_facts(FactsRef("oscar", "", "nowhere"))
    (tmp_path / "o.csv").write_text("year,category,nominee,winner\n")
    with pytest.raises(DataError, match="none that could be used"):
        build(tmp_path / "o.csv", "grammy", tmp_path / "g.parquet")


def test_lists_written_as_python_are_read_as_literals_and_never_run(tmp_path):
    bad = "[__import__('os').system('touch /tmp/raypipe-was-here')]"
    (tmp_path / "m.csv").write_text(f"title,genres\nA Film,\"{bad}\"\nB Film,\"[{{'name': 'Drama'}}]\"\n")
    assert build(tmp_path / "m.csv", "movielens", tmp_path / "m.parquet").facts == 2
    table = opened("m", tmp_path / "m.parquet")
    assert about(table, "b film", ("exact",)) == ("The title is B Film. The genres is Drama.",)
    assert about(table, "a film", ("exact",)) == ("The title is A Film.",)


def test_a_file_that_is_not_what_the_recipe_was_resolved_with_is_refused(tmp_path):
    (tmp_path / "m.csv").write_text("title,genres\nA Film,\n")
    build(tmp_path / "m.csv", "movielens", tmp_path / "m.parquet")
    ref = FactsRef("m", str(tmp_path / "m.parquet"), facts_version(tmp_path / "m.parquet"))
    (tmp_path / "m.csv").write_text("title,genres\nAnother Film,\n")
    build(tmp_path / "m.csv", "movielens", tmp_path / "m.parquet")
    with pytest.raises(ConfError, match="not what the recipe was resolved with"):
        open_facts(ref)
    kit = LocalKit(None)
    other = replace(ref, version=facts_version(tmp_path / "m.parquet"))
    assert about(kit.data(other), "Another Film", ("exact",))
    with pytest.raises(ConfError, match="expected " + ref.version):
        kit.data(ref)  # the same path in the same process
