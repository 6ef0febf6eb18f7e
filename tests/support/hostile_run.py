"""A finished run in which every text from data would be markup and script, if a page let it."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.evaluation.result_table import SCHEMA, each
from raypipe.runs.record import read
from raypipe.runs.run_parts import RunFolder

MARKUP = '</script><script>window.owned=1</script><img src=x onerror="window.owned=1"><b>"\'\u2028\ud800'
KEPT = {
    "run",
    "chunk",
    "source",
    "verdict",
    "outcome",
    "measure",
    "lead",
    "kind",
    "role",
    "measures",
    "scores",
    "blocks",
}


OF_DATA = ("models", "faults", "by_rule", "measure_slices", "answered_by", "normalized", "losses", "steps")
"""Fields of a record that hold texts of data or names of recipes."""


def hostile(value, name=""):
    """The same with markup after every text, in keys of labels as well."""
    if name in KEPT:
        return value
    if isinstance(value, dict):
        return {
            k + MARKUP.encode("utf-8", "ignore").decode() if name == "labels" else k: hostile(v, k)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [hostile(v, name) for v in value]
    return value + MARKUP.encode("utf-8", "ignore").decode() if isinstance(value, str) else value


def hostile_run(ran, folder):
    """A copy of a run's folder whose table and report are hostile, and its record."""
    shutil.copytree(ran, folder)
    run = RunFolder(folder)
    rows = [hostile({**row, "id": f"{row['id']}'\"<b>&#q=1"}) for row in each(run.results)]
    for row in rows:
        row["replies"].append({**row["replies"][0], "label": "trace", "text": '{"call": "<b>x</b>"}\n<b>'})
        row["hits"][0]["url"] = row["hits"][0]["file"] = "javascript:window.owned=1"
    about = pq.read_schema(run.results).metadata
    pairs = [{k: list(v.items()) if isinstance(v, dict) else v for k, v in row.items()} for row in rows]
    for row in pairs:
        row["hits"] = [{**h, "scores": list(h["scores"].items())} for h in row["hits"]]
    pq.write_table(pa.Table.from_pylist(pairs, SCHEMA.with_metadata(about)), run.results)
    tree = json.loads(run.record.read_text())
    tree |= {name: hostile(tree[name], name) for name in OF_DATA}
    tree["recipe"]["name"] = hostile(tree["recipe"]["name"])
    run.record.write_text(json.dumps(tree))
    return run, read(folder)
