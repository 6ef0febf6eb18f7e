"""`raypipe kg build`: CSV files become a graph that answers calls, from its folder and behind a server."""

import json

import pytest

from raypipe.api.cli.main import main
from raypipe.contrib.crag.api.graphs import serve_graph

TIME = "03/05/2024, 23:18:31 PT"
MORE = [f"Thing{word}" for word in "abcdefgh"]  # a server's search finds no word that half of the names have
FILES = {
    "products.csv": "product,note,Ship weight,code\nVelora Lamp,A desk lamp.,2.5,007\nOrbit Fan,,4,012\n"
    + "".join(f"{name},,,\n" for name in MORE),
    "colours.tsv": "product\tcolour\nvelora lamp\tred\nVelora Lamp\tblue\nOrbit Fan\t\n",
    "firms.csv": "\ufeffsymbol;firm;cap\nVEL;Velora Inc.;1,250,000\n"
    + "".join(f"{name[5:]};{name};\n" for name in MORE),
    "quotes.csv": "symbol,day,last\nVEL,2024-03-01,10.5\nVEL,2024-03-04,12\nVEL,2024-03-06,99\n",
    "films.csv": "film,out,kind\nRed Dusk,2019-04-01,Drama; War\nBlue Dawn,2031-01-01,\n"
    + "".join(f"{name},,\n" for name in MORE),
    "people.csv": "who,born\nAnn Lee,1980-02-03\n" + "".join(f"{name},\n" for name in MORE),
    "casts.csv": "film,who\nRed Dusk,Ann Lee\nBlue Dawn,Ann Lee\n",
}
PLAN = """
tables:
  entity:
    - {file: products.csv, columns: {name: product, summary_text: note}, attributes: [Ship weight, code]}
    - {file: colours.tsv, columns: {name: product}, attributes: [colour]}
  company: [{file: firms.csv, columns: {ticker: symbol, name: firm, market_cap: cap}}]
  price: [{file: quotes.csv, columns: {ticker: symbol, date: day, close: last}}]
  movie: [{file: films.csv, columns: {title: film, release_date: out, genres: kind}}]
  person: [{file: people.csv, columns: {name: who, birthday: born}}]
  cast: [{file: casts.csv, columns: {movie_name: film, name: who}}]
"""
CALLS = {
    'get_open("velora lamp")["ship_weight"]': ["2.5"],
    'get_open("velora lamp")["code"]': ["007"],  # as the file has it
    'get_open("velora lamp")["colour"]': ["red; blue"],  # of two lines
    'get_stock_market_cap("Velora")': [1_250_000],
    'get_stock_price("VEL", "2024-03-04")["close"]': [12.0],
    'get_stock_price("VEL", "2024-03-06")["close"]': [12.0],  # not closed yet: the last one that is
    'get_movie("red dusk")["genres"]': ["Drama"],
    'get_movie("red dusk")["year"]': [2019],
    'get_movie_person_cast(None, "ann lee")["movie_name"]': ["Red Dusk"],  # the other is not out
    'get_person("ann lee")["birthday"]': ["1980-02-03"],
}


def written(folder, files=FILES, plan=PLAN):
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "shop.yaml").write_text(plan)
    return str(folder / "shop.yaml")


def values(capsys, graph):
    assert main(["kg", "run", "--graph", graph, "--time", TIME, "\n".join(CALLS), "--json"]) == 0
    return [r["values"] for r in json.loads(capsys.readouterr().out)["results"]]


def test_a_built_graph_answers_from_its_folder_and_behind_a_server(tmp_path, capsys):
    plan, out = written(tmp_path), str(tmp_path / "kg")
    assert main(["kg", "build", plan, "--out", out, "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert built["version"].startswith("tables:")
    assert built["tables"][0] == {
        "table": "entity",
        "lines": 13,
        "rows": 10,
        "keys": ["name", "Ship weight", "code", "colour", "summary_text"],
    }
    assert values(capsys, out) == list(CALLS.values())
    with serve_graph(out) as url:
        assert values(capsys, url) == list(CALLS.values())


def test_equal_files_make_a_graph_of_one_version(tmp_path, capsys):
    versions = set()
    for out in ("one", "two"):
        assert main(["kg", "build", written(tmp_path), "--out", str(tmp_path / out), "--json"]) == 0
        versions.add(json.loads(capsys.readouterr().out)["version"])
    assert len(versions) == 1


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("quotes.csv", "symbol,day,last\nVEL,1.3.24,1\n", "quotes.csv:2 day: expected a day as 2024-03-05"),
        ("quotes.csv", "symbol,day,last\nVEL,2024-03-01,\nVEL,2024-03-02,x\n", "quotes.csv:3 last: expected"),
        ("quotes.csv", "symbol,day,last\nVEL,,1\n", "quotes.csv:2 day: expected a value, found none"),
        ("quotes.csv", "symbol,date,last\nVEL,2024-03-01,1\n", "quotes.csv:1: expected a column 'day'"),
        ("quotes.csv", "symbol,day,last\n", "quotes.csv: expected lines behind the names"),
        ("firms.csv", "symbol,firm,cap\nVEL,V,1.5\n", "firms.csv:2 cap: expected a whole number, found"),
        ("products.csv", 'product,note,Ship weight,code\nA,"x\ny",1,2\n,,1,2\n', "products.csv:4 product:"),
        ("firms.csv", "symbol,firm,cap\nVEL,V,1,2,3\n", "firms.csv:2: expected at most 3 cells"),
    ],
)
def test_a_cell_that_cannot_be_read_is_named_and_nothing_is_left(tmp_path, capsys, file, text, says):
    plan = written(tmp_path, FILES | {file: text})
    before = sorted(tmp_path.iterdir())
    assert main(["kg", "build", plan, "--out", str(tmp_path / "kg")]) == 3
    assert says in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ("{}", "tables: expected one at least of"),
        ("{film: []}", "tables.film: the graph has no such table"),
        ("{movie: [{file: films.csv, columns: {tilte: film}}]}", "tables.movie[0].columns: unknown 'tilte'"),
        ("{movie: [{file: films.csv, columns: {year: out}}]}", "expected title: no call finds a row without"),
        ("{price: [{file: quotes.csv, columns: {ticker: symbol}}]}", "columns: expected date: no call"),
        ("{movie: [{file: f.csv, columns: {title: film}, attributes: [x]}]}", "attributes: expected"),
        ("{movie: [{file: films.json, columns: {title: film}}]}", "file: expected a name that ends in .csv"),
        ("{movie: [{file: none.csv, columns: {title: film}}]}", "none.csv"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_with_its_place(tmp_path, capsys, tables, says):
    plan = written(tmp_path, plan=f"tables: {tables}\n")
    assert main(["kg", "build", plan, "--out", str(tmp_path / "kg")]) in (2, 3)
    assert says in capsys.readouterr().err


def test_a_folder_that_is_not_empty_is_kept(tmp_path, capsys):
    (tmp_path / "kg").mkdir()
    (tmp_path / "kg" / "movie.csv").write_text("title\nA\n")
    assert main(["kg", "build", written(tmp_path), "--out", str(tmp_path / "kg")]) == 3
    assert "expected a new or an empty folder" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "kg").iterdir()] == ["movie.csv"]
