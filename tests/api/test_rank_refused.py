"""A ranking whose ids a TREC run cannot hold."""

import json

import pytest

from raypipe.api.questions import rank
from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.runs.pipeline.ingest import ingest
from raypipe.store import Store
from raypipe.store.housekeeping import tables


@pytest.mark.parametrize(("document", "query"), [("manual 7", "q1"), ("d1", "q\t1"), ("d\u00a01", "q1")])
def test_an_id_that_a_trec_run_cannot_hold_is_refused_before_anything_is_computed(tmp_path, document, query):
    for name, id in (("corpus", document), ("queries", query)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"_id": id, "title": "", "text": "pump"}))
    store = Store.create(str(tmp_path / "store"))
    ingest(store, [tmp_path], "beir", Progress(None, silent=True))
    with pytest.raises(DataError, match="expected an id without white space"):
        rank("collection-bm25", store=tmp_path / "store", out=tmp_path / "run.trec")
    assert not any(name.startswith("passages") for name in tables(store))
    assert not (tmp_path / "run.trec").exists()
