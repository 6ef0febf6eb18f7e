"""graphs.yaml: what an entry may say, what of it is identity, and what is refused."""

import asyncio
import json

import pytest
from checkout import ROOT

from raypipe.api.session import load_recipe
from raypipe.contrib.crag.references import GraphRef
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.models.kit import LocalKit
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.memo import MemoryMemo

TIME = "03/05/2024, 10:00:00 PT"


@pytest.fixture
def made(tmp_path):
    """entry of graphs.yaml, places -> the graph that `local-kg` asks, and the recipe's digest."""
    (tmp_path / "kg").mkdir()
    (tmp_path / "kg/movie.json").write_text(json.dumps([{"title": "The Maze Runner", "year": 2014}]))

    models = []  # of the recipe, each time

    def of(entry, graphs=None):
        (tmp_path / "graphs.yaml").write_text(f"world: {json.dumps(entry)}\n")
        files = Conf((tmp_path, ROOT / "conf"))
        recipe = load_recipe("local-kg", None, files, graphs or {"": str(tmp_path / "kg")})
        models.append({m.name for m in recipe.models()})
        return recipe.named(GraphRef)[0], recipe.digest()

    of.models = models
    return of


def test_how_names_are_linked_is_the_entrys_to_say_and_identity(made):
    loose, one = made({"kind": "folder"})
    strict, two = made({"kind": "folder", "levels": {"movie": ["exact"]}})
    assert one != two

    def year(ref):
        [result] = asyncio.run(LocalKit(None).data(ref).run("get_movie(maze runner)[year]", TIME))
        return result.values

    assert (year(loose), year(strict)) == ((2014,), ())


MEANT = {
    "kind": "folder",
    "levels": {"movie": ["exact", "embedding"]},
    "embedder": "hash-embedder",
    "near": 0.5,
}


@pytest.mark.slow
def test_an_entry_can_name_an_embedder_by_which_names_are_linked(made):
    ref, one = made(MEANT)
    assert made({**MEANT, "near": 0.6})[1] != one != made({**MEANT, "embedder": "all-MiniLM-L6-v2"})[1]
    memo, counts = MemoryMemo(), []

    def linked(written):
        tally = CallCounts()
        graph = cached(LocalKit(None), memo, tally).data(ref)
        [result] = asyncio.run(graph.run(f'get_movie("{written}")["year"]', TIME))
        counts.append((tally.vectors.computed, tally.vectors.cached))
        return [(link.name, link.level) for link in result.links]

    assert linked("maze runners the") == [("The Maze Runner", "embedding")]
    assert linked("the maze runner") == [("The Maze Runner", "exact")]
    assert linked("something quite different") == []
    assert linked("maze runners the") == [("The Maze Runner", "embedding")]
    assert counts == [(2, 0), (0, 0), (1, 1), (0, 2)], (
        "names are embedded once, and only where nothing nearer fits"
    )
    assert "hash-embedder" in made.models[0], "so that it is got and checked as others are"


def test_what_a_folder_holds_is_identity_and_where_it_lies_is_not(made, tmp_path):
    _, one = made({"kind": "folder"})
    (tmp_path / "kg").rename(tmp_path / "moved")
    _, two = made({"kind": "folder"}, {"world": str(tmp_path / "moved")})
    (tmp_path / "moved/movie.json").write_text("[]")
    _, three = made({"kind": "folder"}, {"world": str(tmp_path / "moved")})
    assert one == two != three


def test_a_folder_that_was_edited_since_is_refused_where_it_is_opened(made, tmp_path):
    ref, _ = made({"kind": "folder"})
    file = tmp_path / "kg/movie.json"
    before = file.read_text()
    file.write_text(before.replace("2014", "2015"))
    with pytest.raises(ConfError, match=r"graph 'world': .* not what the recipe was resolved with") as caught:
        LocalKit(None).data(ref)
    assert ref.version in str(caught.value) and "Restore it on every machine" in str(caught.value)
    file.write_text(before)
    LocalKit(None).data(ref)


def test_periods_are_words_or_seconds_and_no_identity(made):
    server = {"kind": "server", "where": "http://127.0.0.1:1", "version": "v"}
    periods = {"movie": "daily", "music": 60, "open": "static", "sports": "live"}
    ref, one = made({**server, "refresh": periods})
    assert dict(ref.refresh) == {"movie": 86400.0, "music": 60.0, "sports": 0.0}
    assert made(server)[1] == one
    assert made({**server, "version": "w"})[1] != one


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"kind": "cloud"}, "expected a graph, of kind folder or server"),
        ({"kind": "server", "where": "http://x"}, "version: expected with kind server"),
        ({"kind": "folder", "version": "v"}, "version: expected with kind server"),
        ({"kind": "server", "where": "here", "version": "v"}, "expected http://HOST:PORT"),
        ({"kind": "folder", "refresh": {"movie": "weekly"}}, "expected static, daily, live or seconds"),
        ({"kind": "folder", "levels": {"film": ["exact"]}}, "'film' is no kind of name"),
        ({"kind": "folder", "levels": {"movie": ["meaning"]}}, "expected one of exact, substring, tokens"),
        ({"kind": "folder", "levels": {"movie": ["embedding"]}}, "embedder and near: expected both"),
        ({"kind": "folder", "embedder": "hash-embedder", "near": 0.5}, "and neither without"),
        ({**MEANT, "near": 1.5}, "near: expected a cosine"),
        ({**MEANT, "embedder": "overlap-reranker"}, "expected a model of kind embedder"),
        ({**MEANT, "embedder": "hash-embeder"}, "did you mean 'hash-embedder'?"),
        ({"kind": "facts"}, "expected a graph"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(made, entry, said):
    with pytest.raises(ConfError) as caught:
        made(entry)
    assert said in str(caught.value)
