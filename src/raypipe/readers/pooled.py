"""Questions that each bring their gold passage, made a retrieval task: all passages are the collection.

Reads lines as DPR has them, `{"question", "answers", "ctxs": [{"title", "text"}]}`, and writes BEIR's files.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from raypipe.core.errors import DataError
from raypipe.core.records import digest


def write_pool(path: Path, folder: Path, questions: int) -> None:
    """Writes corpus.jsonl, queries.jsonl and qrels.trec: every passage of the file once, and its first
    `questions` questions, for which their own passages are relevant. Raises DataError."""
    corpus: dict[str, str] = {}
    queries, judged = [], []
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            try:
                row = json.loads(line)
                passages = [{"title": c["title"], "text": c["text"]} for c in row["ctxs"]]
                question = row["question"]
            except (ValueError, KeyError, TypeError) as e:
                raise DataError(
                    f"{path}:{number + 1}: expected question and ctxs of title and text, found "
                    f"{line[:60]!r} ({e})"
                ) from e
            ids = [digest("pooled", p["title"], p["text"])[:16] for p in passages]
            for id, passage in zip(ids, passages, strict=True):
                corpus[id] = json.dumps({"_id": id, **passage}, ensure_ascii=False)
            if number < questions:
                queries.append(json.dumps({"_id": f"q{number}", "text": question}, ensure_ascii=False))
                judged += [f"q{number} 0 {id} 1" for id in dict.fromkeys(ids)]
    folder.mkdir(parents=True, exist_ok=True)
    files = {"corpus.jsonl": corpus.values(), "queries.jsonl": queries, "qrels.trec": judged}
    for name, rows in files.items():
        (folder / name).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
