"""Readers, kinds of data, rules, judges and loaders of one's own: those of docs/extend.md."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from reruns import FAKES

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.core.errors import ConfError, DataError
from raypipe.evaluation.judge import OwnJudge
from raypipe.metrics import verdict_rules
from raypipe.metrics.kinds import kind_id, open_kind, score
from raypipe.metrics.verdict_rules import Prediction
from raypipe.models.kit import LocalKit
from raypipe.readers import ReadCounts, open, reader_id
from raypipe.store import Store
from raypipe.text.blocks import plain_blocks
from raypipe.text.candidates import SourceText, candidates

PAGE = (ROOT / "docs/extend.md").read_text(encoding="utf-8")
# A step is that of tests/support/own_step.py, a plugin folder that of test_plugin_folder.py.
DOC = PAGE[PAGE.index("## A reader") : PAGE.index("## A plugin folder")]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's modules in the current folder, importable for this test alone."""
    names = re.findall(r"`(mypkg/[a-z]+\.py)`:$", DOC, re.MULTILINE)
    files = ("readers", "docling", "kinds", "metrics", "judges", "loaders")
    assert names == [f"mypkg/{n}.py" for n in files]
    (tmp_path / "mypkg").mkdir()
    for name, block in zip(names, blocks("python"), strict=True):
        (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    forget()


def forget():
    verdict_rules._from_outside.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "mypkg"]:
        del sys.modules[name]


def edit(name, old, new):
    file = Path("mypkg") / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    forget()


CSV = "id,question,answer\na,who wrote it?,Ada\nb,who read it?,Bea\n"


def test_a_reader_of_ones_own_fills_a_store_and_its_source_is_part_of_what_was_read(folder, capsys):
    Path("questions.csv").write_text(CSV)
    command = ["ingest", "questions.csv", "--format", "mypkg.readers:rows", "--store", str(folder / "s")]
    assert main([*command, "--json"]) == 0
    rows = Store.open(str(folder / "s")).dataset("questions").to_table().to_pylist()
    assert {r["id"]: r["text"] for r in rows} == {"a": "who wrote it?", "b": "who read it?"}
    capsys.readouterr()
    before = reader_id("mypkg.readers:rows")
    edit("readers.py", "Questions in", "Rows of")
    assert reader_id("mypkg.readers:rows") != before != reader_id("crag")


def test_rows_of_a_reader_of_ones_own_are_counted_and_an_id_with_two_contents_is_a_fault(folder):
    Path("q.csv").write_text(CSV + "a,who wrote it?,Ada\nb,another,Bea\n")
    counts = ReadCounts()
    rows = list(open(["q.csv"], "mypkg.readers:rows", counts))
    assert [r.question and r.question.id for r in rows] == ["a", "b", None]
    assert [f.reason for f in rows[-1].faults] == ["conflicting_id"]
    assert (counts.lines, counts.rows, counts.repeated_rows, counts.faults) == (4, 2, 1, 1)
    assert counts.bytes_read == Path("q.csv").stat().st_size


def test_what_a_reader_yields_is_checked(folder):
    Path("q.csv").write_text(CSV)
    edit("readers.py", 'yield Row(f"{file.name}:{n}", question, gold)', "yield question")
    with pytest.raises(DataError, match=r"mypkg.readers:rows: expected rows of class readers.Row"):
        list(open(["q.csv"], "mypkg.readers:rows", ReadCounts()))


def test_what_a_reader_raises_is_its_own(folder):
    Path("q.csv").write_text(CSV)
    edit("readers.py", 'yield Row(f"{file.name}:{n}", question, gold)', 'raise KeyError("id")')
    with pytest.raises(DataError, match=r"reader mypkg.readers:rows, q.csv: .*'id' at .*readers.py"):
        list(open(["q.csv"], "mypkg.readers:rows", ReadCounts()))


def cell(text, row, column, rows=1, columns=1, header=False):
    return {
        "text": text,
        "row_span": rows,
        "col_span": columns,
        "start_row_offset_idx": row,
        "end_row_offset_idx": row + rows,
        "start_col_offset_idx": column,
        "end_col_offset_idx": column + columns,
        "column_header": header,
        "row_header": False,
        "row_section": False,
    }


def docling():
    """A document of two pages in the published schema of Docling: a heading, a group, a table."""

    def item(ref, label, page, parent="#/body", **more):
        box = {"l": 72.0, "t": 720.0, "r": 300.0, "b": 700.0, "coord_origin": "BOTTOMLEFT"}
        prov = [{"page_no": page, "bbox": box, "charspan": [0, 9]}]
        shared = {"parent": {"$ref": parent}, "children": [], "content_layer": "body", "prov": prov}
        return {"self_ref": ref, "label": label, **shared, **more}

    def text(n, label, said, parent="#/body"):
        return item(f"#/texts/{n}", label, 1, parent, orig=said, text=said)

    header = [
        cell("Model", 0, 0, rows=2, header=True),
        cell("Sales", 0, 1, columns=2, header=True),
        cell("2023", 1, 1, header=True),
        cell("2024", 1, 2, header=True),
    ]
    body = [cell("IM-60", 2, 0), cell("1,204", 2, 1), cell("1,377", 2, 2)]
    data = {"table_cells": [*header, *body], "num_rows": 3, "num_cols": 3, "grid": []}
    root = {"content_layer": "body", "label": "unspecified"}
    return {
        "schema_name": "DoclingDocument",
        "version": "1.7.0",
        "name": "pumps",
        "origin": {"mimetype": "application/pdf", "binary_hash": 7, "filename": "pumps.pdf"},
        "body": {
            "self_ref": "#/body",
            **root,
            "name": "_root_",
            "children": [{"$ref": f"#/{n}"} for n in ("texts/0", "groups/0", "tables/0")],
        },
        "furniture": {"self_ref": "#/furniture", **root, "children": []},
        "groups": [
            {
                "self_ref": "#/groups/0",
                "parent": {"$ref": "#/body"},
                "name": "list",
                "label": "list",
                "children": [{"$ref": "#/texts/1"}],
                "content_layer": "body",
            }
        ],
        "texts": [
            text(0, "section_header", "Pumps"),
            text(1, "list_item", "It is made in Bonn.", "#/groups/0"),
        ],
        "tables": [item("#/tables/0", "table", 2, data=data, captions=[], references=[], footnotes=[])],
        "pictures": [],
        "key_value_items": [],
        "form_items": [],
        "pages": {str(n): {"page_no": n, "size": {"width": 595.0, "height": 842.0}} for n in (1, 2)},
    }


def test_the_json_of_docling_becomes_a_document_with_pages_and_rows_of_tables(folder):
    Path("pumps.json").write_text(json.dumps(docling()))
    [row] = open(["pumps.json"], "mypkg.docling:rows", ReadCounts())
    text = row.sources[0].content
    assert text.split("\n") == [
        "## Pumps",
        "",
        "It is made in Bonn.",
        "",
        "| Model | Sales 2023 | Sales 2024 |",
        "| IM-60 | 1,204 | 1,377 |",
    ]
    first, second = row.layout.pages
    folded = " ".join(text.split())
    assert (first.label, second.label, row.layout.url) == ("1", "2", "pumps.pdf")
    assert folded[second.start : second.end].startswith("| Model") and "Bonn" in folded[: first.end]
    found = candidates([("s", (0, len(folded)))], {"s": SourceText(folded, plain_blocks(text, titled=True))})
    assert "IM-60, Sales 2024: 1,377" in [s.text for s in found if s.value]


def test_a_kind_of_ones_own_measures_answers_and_is_named_with_its_source(folder, capsys):
    rows = [Prediction("a", "B) Ada", ("B",)), Prediction("b", "c", ("B",)), Prediction("c", None, ("B",))]
    found = score(open_kind("mypkg.kinds:Choices"), kind_id("mypkg.kinds:Choices"), rows)
    assert found.values == {"a": {"right": 1.0}, "b": {"right": 0.0}, "c": {}}
    assert found.of("right").mean == 0.5 and re.fullmatch(r"mypkg\.kinds:Choices@[0-9a-f]{8}", found.kind)
    Path("q.csv").write_text(CSV)
    command = ["ingest", "q.csv", "--format", "mypkg.readers:rows", "--store", str(folder / "s"), "--json"]
    assert main([*command, "--kind", "mypkg.kinds:Choices"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "mypkg.kinds:Choices"
    assert main([*command, "--kind", "mypkg.kinds:Choice"]) == 2
    assert "did you mean 'Choices'" in capsys.readouterr().err


def test_a_rule_of_ones_own_scores_a_file_and_is_named_with_its_source(folder, capsys):
    said = [("Ada wrote it", "Ada"), ("i don't know", "Bea"), ("Carl", "Dora")]
    lines = [json.dumps({"query": "?", "answer": a, "prediction": p}) for p, a in said]
    Path("predictions.jsonl").write_text("\n".join(lines))
    assert main(["score", "crag", "predictions.jsonl", "--rule", "mypkg.metrics:verdict", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    score = found["by_rule"]["score"]
    assert (score["n_correct"], score["n_miss"], score["n_hallucination"]) == (1, 1, 1)
    assert re.fullmatch(r"mypkg\.metrics:verdict@[0-9a-f]{8}", found["by_rule"]["rule"])


def test_a_verdict_that_is_none_is_refused(folder):
    edit("metrics.py", 'return "missing"', 'return "perhaps"')
    row = verdict_rules.Prediction("a", "i don't know", ("Ada",))
    with pytest.raises(ConfError, match=r"mypkg.metrics:verdict: expected a verdict, one of correct"):
        verdict_rules.mark([row], "mypkg.metrics:verdict")


@pytest.fixture
def judged(folder, bench, capsys, monkeypatch):
    """The report of an eval with a judge of one's own; its answers are in the store already."""
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))

    bench.run(FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n"))

    def run():
        command = ["eval", str(bench.folder / "fakes.yaml"), "--models", str(bench.folder / "models.yaml")]
        command += ["--data", str(bench.world), "--format", "crag", "--store", str(bench.folder / "store")]
        command += ["--out", str(bench.folder / "judged"), "--judge", "mypkg.judges:agrees", "--json"]
        capsys.readouterr()
        return main(command), capsys.readouterr()

    return run


@pytest.mark.slow
def test_a_judge_of_ones_own_decides_what_the_rule_leaves_open_and_is_named_with_its_source(judged):
    code, said = judged()
    judge = json.loads(said.out)["judge"]
    assert code == 0 and judge["pairs"] == judge["computed"] > 0 and judge["no_reply"] == 0
    assert json.loads(said.out)["answers"]["not scored"] == 0
    assert re.fullmatch(r"mypkg\.judges:agrees@[0-9a-f]{8}", judge["model"])
    edit("judges.py", "return any", "return None and any")
    report = json.loads(judged()[1].out)
    assert report["answers"]["not scored"] == report["judge"]["no_reply"] == judge["pairs"]
    edit("judges.py", "return None and any", "return 'yes' or any")
    code, said = judged()
    assert code == 2 and "mypkg.judges:agrees: expected True, False or None, found 'yes'" in said.err


def test_what_a_judge_raises_is_its_own(folder):
    edit("judges.py", "return any", "return [][0] or any")
    judge, row = OwnJudge.load("mypkg.judges:agrees", "official"), Prediction("q", "a", ("b",))
    with pytest.raises(DataError, match=r"judge mypkg.judges:agrees, question q: .* at .*judges.py:\d+\. "):
        judge.ask(None, [row], {"q": "?"}, False)


RECIPE = """
about: letters
corpus:
  - parse: {kinds: [name]}
  - split: {child_chars: 200}
  - embed: {model: letters}
question:
  - dense: {model: letters, top: 3}
  - fuse: {weights: {dense: 1.0}, top: 3}
  - extract: {embedder: letters}
  - decide: {prefer: [extract]}
"""


def letters():
    [entry] = blocks("yaml")
    Path("models.yaml").write_text(entry + "overlap: {kind: reranker, loader: overlap}\n")
    Path("letters.yaml").write_text(RECIPE)
    return load_recipe("letters.yaml", "models.yaml")


def test_a_loader_of_ones_own_opens_its_model_and_its_source_is_the_models_identity(folder):
    recipe = letters()
    [model] = recipe.embedders()
    vectors = asyncio.run(LocalKit(None).embedder(model)(["abba", "decade"], "passage"))
    assert vectors.shape == (2, 8)
    edit("loaders.py", "count letters", "count some letters")
    with pytest.raises(ConfError, match=r"the source of mypkg.loaders:open_model is not what the recipe"):
        asyncio.run(LocalKit(None).embedder(model)(["abba"], "passage"))
    assert letters().digest() != recipe.digest()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["ingest", ".", "--format", "carg", "--store", "s"], "unknown value 'carg'; did you mean 'crag'?"),
        (["score", "crag", "p", "--rule", "oficial"], "unknown value 'oficial'; did you mean 'official'?"),
    ],
)
def test_a_name_that_is_neither_shipped_nor_a_path_is_refused_with_what_may_be_meant(command, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2 and said in capsys.readouterr().err
