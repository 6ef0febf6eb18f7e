"""Plants a word of its own in each of some sources, in every place that a store can hold, and forgets them.

    python bench/drills/forget.py --sources 20

Pages that questions cite, and documents of a collection that is searched by words. Two recipes answer from
them, labels and an adapter are made of the answers, a run is live, and an endpoint in this process captures
what it answers; a user pastes the page, a fault quotes it, a question has U+2028. Then one source after the
other is forgotten. Its word must be in no file of the store: raw bytes, columns of every file of a table,
JSON, Arrow and gzip are looked through, and postings for the hash of the word. Of a run's folder only files
that raypipe did not write may have it, and the dry run names these. Prints a line of JSON for each source and
the sum; exit code 1 if a word is left, or was not there before.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from lance.file import LanceFileReader

from raypipe.api.release import forget
from raypipe.api.session import Session, from_environment, load_recipe
from raypipe.contrib.finetune.label_files import Label, write_labels
from raypipe.contrib.world.write import write
from raypipe.core.conf import Conf
from raypipe.core.llm import Message
from raypipe.core.progress import Progress
from raypipe.core.records import digest
from raypipe.core.textfile import json_lines
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.record import read
from raypipe.runs.release import live, promote
from raypipe.serving.access import ApiKeys, CaptureConfig, RequestLimits, ServerConfig
from raypipe.serving.capture import Capture
from raypipe.serving.http import create_app
from raypipe.serving.release_follower import POLL_S, ReleaseFollower
from raypipe.store import Store, commit, write_part
from raypipe.store import files as store_files
from raypipe.store.adapters import put_adapter
from raypipe.store.files import TRAININGS
from raypipe.text.words import analyse

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "tests" / "support" / "fakes.yaml").read_text()
RANKS = RECIPE[: RECIPE.index("  - extract:")].replace(
    "  - shortlist: {model: overlap-reranker, pages: 5}\n", ""
)
ANSWERS = RECIPE.replace(
    "  - decide: {prefer: [extract]}",
    "  - generate:\n      model: scripted\n      prompt:\n        variables: [context, text]\n"
    '        system: Read.\n        user: "{{ context }}\\nQuestion: {{ text }}"\n'
    "      into: llm\n      max_tokens: 50\n      context_tokens: 400\n"
    "  - decide: {prefer: [llm, extract]}",
)
PAGES = 2  # of a question: the first one is planted
OTHERS = ("notes.yaml", "run.log", "predictions.jsonl.gz", "notes.jsonl")
"""Files that a person put into a run's folder."""


def word(n: int) -> str:
    """What source n alone says."""
    return f"quorzimandel{n:02d}"


def address(n: int) -> str:
    """The url of page n."""
    return f"https://leak.example/{word(n)}-page"


def _paper(n: int) -> str:
    return f"paper-{word(n)}"


def holding(marker: str, folder: Path) -> list[str]:
    """Files of a folder that have a word in any case, also in columns, in gzip, and as a hash in postings."""
    told = marker.lower()
    hashes = set(analyse(marker, "stems")[0].view(np.int64).tolist())
    found = []
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if told.encode() in raw.lower() or _in_columns(file, told, hashes):
            found.append(str(file.relative_to(folder)))
    return found


def _in_columns(file: Path, told: str, hashes: set[int]) -> bool:
    if file.suffix == ".lance" and file.parent.name == "data":
        rows = LanceFileReader(str(file)).read_all().to_table()
    elif file.suffix == ".arrow" and "_deletions" not in file.parts:
        rows = pa.ipc.open_file(file.read_bytes()).read_all()
    elif file.suffix == ".parquet":
        rows = pq.read_table(file)
    else:
        return False
    if "word" in rows.column_names and not hashes.isdisjoint(rows["word"].to_pylist()):
        return True
    return told in str(rows.to_pylist()).lower()


@dataclass
class World:
    """A store with planted sources, its runs and its endpoint."""

    folder: Path
    pages: int  # planted ones
    papers: int
    made: bool = False  # True: it is there, as in a copy

    def __post_init__(self) -> None:
        if self.made:
            return
        write(self.folder / "synth", self.pages + 1, pages=PAGES, seed=3, page_chars=1000)
        (self.folder / "models.yaml").write_text((ROOT / "conf" / "models.yaml").read_text())
        self.run()

    @property
    def store(self) -> Store:
        return Store.create(str(self.folder / "store"))

    def names(self) -> list[str]:
        """What is forgotten, in the order of the words."""
        return [*map(address, range(self.pages)), *map(_paper, range(self.pages, self.planted))]

    @property
    def planted(self) -> int:
        return self.pages + self.papers

    def _lines(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / "synth").glob("questions*.jsonl"))
        lines = [line for file in files for line in json_lines(file.read_text())]
        for n in range(self.pages):
            line = lines[n]
            said = f"{line['query']} {word(n)} is the answer that the secret file of {word(n)} gives."
            line["search_results"][0] = {
                "page_url": address(n),
                "page_name": f"{word(n)} file",
                "page_snippet": f"It is {word(n)}.",
                "page_result": f"<html><title>{word(n)}</title><body><p>{said}</p></body></html>",
                "page_last_modified": "",
            }
        return lines

    def _collection(self) -> Path:
        """Papers and queries about them, as BEIR has them; every paper is judged."""
        folder = self.folder / "beir"
        folder.mkdir(exist_ok=True)
        numbers = range(self.pages, self.planted + 4)
        papers = [
            {
                "_id": _paper(n),
                "title": f"Paper {n}",
                "text": f"A study of trees by {word(n)} and {n} birds.",
            }
            for n in numbers
        ]
        queries = [{"_id": f"query-{n}", "text": f"a study of {n} birds and trees"} for n in numbers]
        for name, lines in (("corpus", papers), ("queries", queries)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        judged = [f"query-{n} 0 {_paper(m)} 1\n" for n in numbers for m in (n, numbers[0])]
        (folder / "qrels.trec").write_text("".join(dict.fromkeys(judged)))
        return folder

    def run(self) -> None:
        """Evaluates both data sets with what may still be read, and promotes the run with answers."""
        data = self.folder / "data.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in self._lines()))
        self._eval(RANKS, self._collection(), "beir", "ranks")
        self._eval(ANSWERS, data, "crag", "answers")
        promote(self.store, read(self.folder / "runs" / "answers"), [])

    def _eval(self, text: str, data: Path, kind: str, out: str) -> None:
        file = self.folder / f"{out}.yaml"
        file.write_text(text)
        recipe = load_recipe(str(file), str(self.folder / "models.yaml"), Conf((ROOT / "conf",)))
        worker = WorkerConfig(self.store.uri, "transformers", "cpu", 1)
        silent = Progress(io.StringIO(), silent=True)
        pipeline = Pipeline(self.store, recipe, worker, TaskSizes(50, 4), inline, silent)
        how = EvalOptions(kind, rule="official" if kind == "crag" else None)
        evaluate(pipeline, [data], self.folder / "runs" / out, how)

    def plant(self, n: int) -> None:
        """Puts the word of a source where no eval puts it."""
        store, said = self.store, f"ValueError: cannot read '{word(n)} is the answer'"
        row = {"id": f"other-{n}", "step": "plug", "reason": "raised", "detail": said, "transient": False}
        row |= {"attempts": 3, "digest": "f" * 32, "run": "r" * 32}
        write_part(
            store, "faults", f"plant{n}", "0", pa.Table.from_pylist([row], store.dataset("faults").schema), {}
        )
        commit(store, "faults", f"plant{n}", ["0"])
        answer = next(r for r in store.scan("answers", ["id", "hits"]).to_pylist() if self._found(n, r))
        chat = Message("system", "Read."), Message("user", f"{word(n)} says so.")
        labels = [
            Label(answer["id"], chat, word(n), "1"),
            Label(f"import-{n}", chat[:1], "other", "imported"),
        ]
        folder = self.folder / "labels" / str(n)
        named = write_labels(folder, labels, "0" * 32, "0" * 32)
        about = {"adapter": digest(str(n)), "labels": {"folder": str(folder), "digest": named}}
        weights = {"adapter.safetensors": word(n).encode(), "recipe.yaml": yaml.safe_dump(about).encode()}
        put_adapter(store.files, f"drill-{n}", weights)
        store.files.write(f"{TRAININGS}/t{n}/checkpoint", word(n).encode())
        run = self.folder / "runs" / ("answers" if n < self.pages else "ranks")
        for name in OTHERS:
            text = json.dumps({"said": f"ab\n\u00e9{word(n)}"}).encode()
            (run / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    def _found(self, n: int, answer: dict[str, Any]) -> bool:
        """Whether an answer found source n."""
        content = self.store.rows("sources", "id", [h["source"].hex() for h in answer["hits"]], ["content"])
        return any(word(n) in text for text in content["content"].to_pylist())

    def forget(self, n: int, dry_run: bool = False) -> Any:
        """Forgets source n."""
        session = Session(from_environment({"RAYPIPE_HOME": str(self.folder / "home")}))
        places = [self.folder / "runs", self.folder / "labels"]
        return forget(self.names()[n], self.store.uri, dry_run, "the licence ended", places, session)

    def unlisted(self) -> list[str]:
        """Files and folders of the store that `store.files` does not name."""
        names = (
            value for key, value in vars(store_files).items() if key.isupper() and isinstance(value, str)
        )
        known = {name.partition("/")[0] for name in names}
        return [n for n in self.store.files.names("") if n not in known and not n.endswith(".lance")]


class Endpoint:
    """An endpoint over the live release in this process, which captures all that it answers."""

    def __init__(self, world: World) -> None:
        self._loop = asyncio.Runner()
        self._world = world
        self._loop.run(self._open())

    async def _open(self) -> None:
        uri = self._world.store.uri
        self.capture = Capture(uri, CaptureConfig(rate=1.0))
        config = ServerConfig(ApiKeys(open=True), RequestLimits(max_body_bytes=1 << 20))
        follower = ReleaseFollower(LocalKit(None, "transformers"), uri)
        self._app = create_app(follower, config, None, capture=self.capture)

    def post(self, path: str, *bodies: dict[str, Any]) -> list[httpx.Response]:
        """Its replies, one after the other. What it captures waits in its memory."""

        async def all_of_them() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app=self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
                return [await http.post(path, json=body) for body in bodies]

        return self._loop.run(all_of_them())

    def flush(self) -> None:
        """Writes what waits."""
        self._loop.run(self.capture.close())

    def ask(self, n: int) -> None:
        """Asks what source n answers, and says of another answer what that page says."""
        lines = self._world._lines()
        asked = [
            {"query": lines[min(n, len(lines) - 1)]["query"]},
            {"query": f"what is\u2028new at {n}?"},
        ]
        came = self.post("/v1/answer", *asked)
        if came[0].status_code == 200:
            said = {"answer_id": came[1].json()["answer_id"], "text": f"{word(n)} is the answer"}
            self.post("/v1/feedback", {**said, "verdict": "wrong"}, said)


def drill(world: World, count: int) -> Iterator[dict[str, Any]]:
    """Forgets each source; yields what was there before and what is left."""
    for n in range(count):
        start = time.perf_counter()
        if live(world.store) is None:
            world.run()
        endpoint = Endpoint(world)
        world.plant(n)
        endpoint.ask(n)
        if n % 2:
            endpoint.flush()  # else its rows wait in memory while the source is forgotten
        store = Path(world.store.uri)
        before, unlisted = holding(word(n), store), world.unlisted()
        named = {Path(h.place).name for h in world.forget(n, dry_run=True).holdings}
        done = world.forget(n)
        time.sleep(POLL_S)
        answered = endpoint.post("/v1/answer", {"query": "who?"})[0].status_code
        endpoint.flush()
        left = holding(word(n), store)
        of_runs = {f for where in ("runs", "labels") for f in holding(word(n), world.folder / where)}
        yield {
            "source": world.names()[n],
            "before": len(before),
            "kinds": sorted({re.split(r"[-./]", name)[0] for name in before}),
            "left": left,
            "left_in_runs": sorted(f for f in of_runs if Path(f).name not in OTHERS),
            "others_named": named.issuperset(OTHERS),
            "unlisted": unlisted,
            "ended": sum("release" in h.place for h in done.holdings),
            "endpoint": answered,
            "seconds": round(time.perf_counter() - start, 1),
        }


EVERYWHERE = {"sources", "texts", "postings", "faults", "_captured", "_adapters", "_trainings"}
OF_PAGES, OF_PAPERS = {"questions", "answers", "replies"}, {"documents", "relevance"}


def sound(line: dict[str, Any]) -> bool:
    """Whether a source was everywhere before, and is nowhere now."""
    expected = EVERYWHERE | (OF_PAPERS if line["source"].startswith("paper") else OF_PAGES)
    gone = not line["left"] and not line["left_in_runs"] and not line["unlisted"]
    there = expected <= set(line["kinds"]) and line["others_named"]
    return bool(gone and there and line["ended"] and line["endpoint"] == 503)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--sources", type=int, default=20, metavar="N", help="sources (default: 20)")
    count = parser.parse_args().sources
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for line in drill(World(Path(folder), count - count // 5, count // 5), count):
            print(json.dumps(line), flush=True)
            lines.append(line)
        good = sum(map(sound, lines))
        print(json.dumps({"sources": len(lines), "sound": good, "seconds": sum(x["seconds"] for x in lines)}))
    return 0 if good == len(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
