"""Captured answers (stored by an endpoint) as data: `--data captured:7d`, or `captured:7d@STORE`."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raypipe import readers
from raypipe.api.paths import format_for, inputs
from raypipe.api.session import Place, Session
from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Gold, digest
from raypipe.core.textfile import replaced
from raypipe.evaluation.golds import stored_questions
from raypipe.readers.crag import CAPTURED as NAME
from raypipe.readers.field_map import Fields
from raypipe.readers.formats import Format
from raypipe.recipes.recipe import Recipe
from raypipe.runs.captured_answers import CapturedAnswer, captured_answers, feedback_since, since_days
from raypipe.runs.pipeline.recipe_tables import lacks_passages, nothing_to_search, require_passages
from raypipe.store import Store

_DATA = re.compile(r"captured:(\d+(?:\.\d+)?)([dh])(?:@(.+))?")
AT_ONCE = 100  # answers held in memory, with the documents of their requests

LEFT_OUT: Mapping[str, str] = {
    "own": "brought documents of their own, which do not go into the store that others search: evaluate them "
    "in another with `--data captured:{span}@{store} --store OTHER`",
    "whole": "searched the whole of the other store: evaluate them with `--data captured:{span} --store "
    "{store}`",
    "gone": "cite pages that the store no longer has",
}
"""Reason to leave a captured question out of an eval -> its description for people."""


@dataclass(frozen=True, slots=True)
class CapturedSpan:
    """Span of time. The answers that were captured in it are the data."""

    days: float
    store: str | None  # the store that captured them; None: the store of the run
    text: str  # the span as given, such as 7d


@dataclass(frozen=True, slots=True)
class CapturedFiles:
    """Files written from the captured answers of a span."""

    data: Path  # in the form that `readers.crag` reads
    labels: Path  # users' verdicts on answers, in the form that `compare --labels` reads
    answers: Path  # the endpoint's first answer to each question, as a file of predictions
    questions: int
    left_out: Mapping[str, int]  # key of LEFT_OUT -> number of questions


def captured_span(data: Sequence[str | Path]) -> CapturedSpan | None:
    """Parses `captured:7d` or `captured:12h@STORE`. Returns None if all data are files. Raises ConfError for
    a span that cannot be read or that is not alone."""
    named = [str(d) for d in data if str(d).startswith("captured:")]
    if not named:
        return None
    match = _DATA.fullmatch(named[0])
    if match is None or not float(match[1]):
        raise ConfError(f"--data {named[0]}: expected captured:7d, captured:12h or captured:7d@STORE")
    if len(data) > 1:
        raise ConfError(f"--data {named[0]}: expected no other path, found {len(data)}. Evaluate files alone")
    days = float(match[1]) / (24 if match[2] == "h" else 1)
    return CapturedSpan(days, match[3], match[1] + match[2])


def open_data(
    recipe: Recipe,
    given: Sequence[str | Path],
    store: Place,
    session: Session,
    format: Format | None,
    fields: Fields | None,
    scratch: Path | None = None,
    docs: str | Path | None = None,
) -> tuple[Store, list[Path], Format]:
    """Opens the store of a run, or creates it for data. Returns the store, the data files and their format.

    `given` are files, or a span of captured answers, which are written to files under $RAYPIPE_HOME. Without
    `given`, the stored questions are the data. `scratch` is a folder for everything that is created. With
    `docs`, a folder that a plan takes as already read, the store need not have passages. Raises ConfError,
    also if a format is given with captured answers. Raises DataError if nothing was captured, if a file is
    missing, or if there would be nothing to search. Refused files create no store.
    """
    if (span := captured_span(given)) is None:
        files = inputs(given, session.settings)
        wanted = format_for(format, files, fields)
        if not files:
            opened = session.store(store)
            if docs is None:
                require_passages(recipe, opened, stored_questions(opened))
            return opened, files, wanted
        readers.check(files, wanted)  # a missing file or field is reported before anything starts
        uri = session.address(store, True)
        # If the store has no passages, a question over the whole store needs files with parsable sources.
        if docs is None and lacks_passages(recipe, Store.find(uri)):
            kinds, whole = recipe.source_kinds(), False
            for row in readers.open(files, wanted, readers.ReadCounts()):
                if any(source.kind in kinds for source in row.sources):
                    break
                whole = whole or (row.question is not None and row.question.sources() is None)
            else:
                if whole:
                    raise DataError(nothing_to_search(recipe, uri))
        return session.store_to_fill(store, scratch), files, wanted
    if format not in (None, NAME):
        raise ConfError(f"--format {format}: expected none with captured data, which has a format of its own")
    if span.store is None:
        served = filled = session.store(store)
    else:
        served, filled = session.store(span.store), session.store_to_fill(store, scratch)
    written = write_captured(span, served, filled, (scratch or session.settings.home) / "captured")
    lines = [f"{n} captured questions {_why(reason, span, served)}" for reason, n in written.left_out.items()]
    said = f"; what users said: {written.labels}" if scratch is None else ""
    lines.append(f"{written.questions} captured questions of the last {span.text}{said}")
    print(*lines, sep="\n", file=sys.stderr)
    return filled, [written.data], NAME


def _why(reason: str, span: CapturedSpan, served: Store) -> str:
    return LEFT_OUT[reason].format(span=span.text, store=served.uri)


def write_captured(span: CapturedSpan, served: Store, filled: Store, folder: Path) -> CapturedFiles:
    """Writes answers captured in `served` for a run in `filled`. Raises DataError if none can be used."""
    since = since_days(span.days)
    feedback = feedback_since(served, since)
    golds: dict[str, dict[str, None]] = {}  # `own_id` of a question -> answers that users gave or confirmed
    for a in captured_answers(served, since):
        texts = [f.text for f in feedback.get(a.answer_id, ()) if f.text is not None]
        verdicts = [f.verdict for f in feedback.get(a.answer_id, ()) if f.verdict is not None]
        right = verdicts[-1:] == ["right"] and a.outcome in ("answered", "false_premise")
        answers = (*reversed(texts), *([a.answer] if right else ()))
        golds.setdefault(a.own_id(), {}).update(dict.fromkeys(answers))
    if not golds:
        none = f"no answers were captured in the last {span.text}"
        raise DataError(f"{served.uri}: {none}. `raypipe serve --capture RATE` captures some")
    place = folder / f"{digest(served.uri, filled.uri)[:12]}-{span.text}"
    place.mkdir(parents=True, exist_ok=True)
    files = [place / name for name in ("captured.jsonl", "labels.jsonl", "answers.jsonl")]
    left_out, ids = Counter[str](), dict[str, str]()  # `own_id` -> id in the data; "": left out
    with ExitStack() as open_ones:
        data, labels, answers_out = (open_ones.enter_context(replaced(f)) for f in files)
        for some in batches(captured_answers(served, since), AT_ONCE):
            for a, line in _rows(served, filled, some, golds):
                if isinstance(line, str):
                    left_out[line] += a.own_id() not in ids
                    ids.setdefault(a.own_id(), "")
                    continue
                if a.own_id() not in ids:
                    ids[a.own_id()] = line["id"]
                    data.write(_json(line))
                    answer, *others = line["answers"] or [None]
                    of = {"id": line["id"], "query": a.query, "prediction": a.answer, "outcome": a.outcome}
                    truths = {"answer": answer, "alternatives": others}
                    by = {"release": a.release, "degraded": list(a.degraded)}
                    answers_out.write(_json({**of, **truths, **by}))
                for f in feedback.get(a.answer_id, ()):
                    if f.verdict is not None:
                        label = {"id": ids[a.own_id()], "prediction": a.answer, "label": f.verdict}
                        labels.write(_json({**label, "picked": "chosen"}))
    questions = sum(bool(id) for id in ids.values())
    if not questions:
        why = "; ".join(f"{n} {_why(reason, span, served)}" for reason, n in left_out.items())
        raise DataError(f"{served.uri}: none of {len(ids)} captured questions can be evaluated here: {why}")
    return CapturedFiles(files[0], files[1], files[2], questions, dict(left_out))


def _rows(
    served: Store, filled: Store, some: Sequence[CapturedAnswer], golds: Mapping[str, Mapping[str, None]]
) -> Iterator[tuple[CapturedAnswer, dict[str, Any] | str]]:
    """Yields each answer with its line of data, or with a key of LEFT_OUT if the answer is left out."""
    here = served.uri == filled.uri
    asked = sorted({a.id for a in some if a.id}) if here else []
    stored = {q.id: q for q in arrow.question.records(served.rows("questions", "id", asked))}
    own_golds = {g.question: g for g in arrow.gold.records(served.rows("golds", "question", list(stored)))}
    judged = set[str]()  # ids of questions with judged documents or annotators' answers, which no line holds
    for table in filter(served.has, ("relevance", "annotations")):
        judged |= set(served.rows(table, "question", list(stored), ["question"])["question"].to_pylist())
    cited = {s for a in some for s in a.question("").sources() or ()}
    kept = {s.id: s for s in arrow.source.records(served.rows("sources", "id", sorted(cited)))}
    for a in some:
        sources = {**kept, **{s.id: s for s in a.sources}}
        mine = [sources.get(s) for s in a.question("").sources() or ()]
        if here and a.own:
            yield a, "own"
        elif not here and a.citations is None:
            yield a, "whole"
        elif None in mine:
            yield a, "gone"
        else:
            known = stored.get(a.id)
            # Reading a line replaces everything stored about its question, so the line repeats the golds.
            same = known is not None and known == a.question(a.id) and a.id not in judged
            gold = own_golds.get(a.id) if same else None
            if gold is None or not gold.answers:
                said = tuple(golds[a.own_id()])
                gold = Gold("", said, {"feedback": "users"} if said else {})
            cites = None
            if a.citations is not None:
                cites = [{k: v for k, v in asdict(c).items() if k != "question"} for c in a.citations]
            brought = () if here else (s for s in mine if s is not None)
            line: dict[str, Any] = {"id": a.id if same else a.own_id()}
            line |= {name: getattr(a, name) for name in ("query", "body", "asked_at")}
            line |= {"citations": cites, "where": a.where, "turns": [asdict(t) for t in a.turns]}
            line["sources"] = [{"kind": s.kind, "content": s.content} for s in brought]
            yield a, {**line, "answers": list(gold.answers), "labels": dict(gold.labels)}


def _json(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
