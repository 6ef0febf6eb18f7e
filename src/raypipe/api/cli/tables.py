"""Console output of comparisons, judge checks, previews of data, and made questions. Text from data is
printed as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from raypipe.api.cli.command import console
from raypipe.api.compare import CompareResult
from raypipe.api.data import FirstQuestion, Preview
from raypipe.api.experiments import RepeatsResult
from raypipe.api.made_data import MadeQuestionsResult
from raypipe.api.scores import JudgeCheckResult
from raypipe.evaluation.compare import RunComparison, open_text
from raypipe.evaluation.judge_check import Agreement
from raypipe.evaluation.report.console import say, show
from raypipe.evaluation.report.formatting import cut, ends, signed
from raypipe.metrics.paired_tests import PairedDifference
from raypipe.text.made_questions import REASONS

SLICES_SHOWN = 12  # slices, the largest first; --json has all
CAUSES_SHOWN = 8  # causes of differences
STYLES = {"better": "bold green", "worse": "bold red"}
NUMBERS = ("difference", "95 % interval", "p", "up", "down")  # heads of the columns that `_numbers` fills


def print_comparisons(found: CompareResult) -> None:
    """Prints each comparison: the verdict first, then metrics, causes and slices."""
    out = console()
    for c in found.comparisons:
        say(out, _verdict_line(c), style=STYLES.get(c.verdict, "bold"), fold=True)
        say(out, f"{c.after} against {c.before}", style="dim")
        if c.same_run:
            say(out, "both are one run, so nothing can differ: name two")
        compared = ((c.measure, c.score), *((r.metric, r.found) for r in c.rates))
        rows = [(name, f"{d.before:.3f}", f"{d.after:.3f}", *_numbers(d, d.p)) for name, d in compared]
        show(out, ("metric", "before", "after", *NUMBERS), rows)
        if sum(c.people):
            verdicts = f"people's labels changed {c.people[0]} and {c.people[1]} verdicts"
            say(out, f"{verdicts}: people outrank judges", fold=True)
        for name, n in zip((c.before, c.after), c.seen, strict=True):
            if n:
                seen = f"seen: a fit or an adapter of {name} has seen {n} of the {c.score.n} questions"
                say(out, f"{seen}, so its score is too good; --unseen leaves them out")
        for ids, what in (
            (c.only_before, f"only in {c.before}"),
            (c.only_after, f"only in {c.after}"),
            (c.unscored, "not scored in one of them"),
            (c.other_questions, "whose id has another text in each"),
            (c.kept, "whose answers one of them kept from an earlier run"),
        ):
            if ids:
                first = f"{', '.join(ids[:3])}{', ...' * (len(ids) > 3)}"
                say(out, f"left out: {len(ids)} questions {what}: {first}")
        if c.causes:
            heads = ("first changed step", "changed field", "answers", "up", "down", f"\u0394{c.measure}")
            shown = [(k.step, k.field, k.moved, k.up, k.down, f"{k.difference:+.4f}") for k in c.causes]
            show(out, heads, shown[:CAUSES_SHOWN])
        if c.slices and all(s.verdict == "cannot tell" for s in c.slices):
            say(out, f"cannot tell in any of {len(c.slices)} slices")
        elif c.slices:
            largest = sorted(c.slices, key=lambda s: -s.found.n)[:SLICES_SHOWN]
            parts = [
                (f"{s.label}: {s.value}", s.found.n, s.verdict, *_numbers(s.found, s.p)) for s in largest
            ]
            show(out, ("slice", "questions", "verdict", *NUMBERS), parts)
            say(out, f"p of the {len(c.slices)} slices is corrected for their number (Holm)", fold=True)


REPEATED_SHOWN = 10  # questions whose verdicts vary most; --json has all


def print_repeats(done: RepeatsResult) -> None:
    """Prints the score of each repeat, their mean and spread, and the questions that vary most."""
    out, found = console(), done.found
    runs = zip(found.runs, found.scores, ("", *found.verdicts), strict=False)
    rows = [(Path(n).name, "not scored" if s is None else f"{s:+.3f}", verdict) for n, s, verdict in runs]
    show(out, ("run", "score", "against the first"), rows)
    mean = "not scored" if found.mean is None else f"{found.mean:+.4f}"
    moved = f"{found.moved} of {len(found.questions)} questions have several verdicts"
    say(out, f"mean {mean}, spread {found.spread:.4f} from run to run; {moved}")
    several = sorted((q for q in found.questions if len(set(q.verdicts)) > 1), key=lambda q: -q.spread)
    for q in several[:REPEATED_SHOWN]:
        mean = "not scored" if q.mean is None else f"mean {q.mean:+.2f}, spread {q.spread:.2f}"
        say(out, f"  {q.question}: {mean}: {', '.join(q.verdicts)}")
    say(out, str(done.folder / "repeats.json"))


def _verdict_line(c: RunComparison) -> str:
    """Formats the verdict of a comparison as a sentence."""
    d = c.score
    difference = f"{c.measure} {d.difference:+.3f} over {d.n} questions, p {c.p:.3g}"
    if c.verdict == "same":
        return f"same within {c.margin:g}: {difference}"
    if c.verdict != "cannot tell":
        return f"{c.verdict}: {difference}"
    if c.open:
        return f"cannot tell: {difference}. {open_text(c)}"
    if d.interval is None:
        return f"cannot tell: {d.groups} groups of questions are too few. {difference}"
    more = f"; {d.questions_needed} questions would show this one" if d.questions_needed else ""
    least = "not known" if d.minimum_detectable is None else f"{d.minimum_detectable:.3f}"
    return f"cannot tell: {difference}. The smallest difference that they show is {least}{more}"


def _numbers(d: PairedDifference, p: float) -> tuple[str, ...]:
    within = ends(d.interval, signed, "too few groups")
    return signed(d.difference), within, f"{p:.3g}", str(d.up), str(d.down)


def print_check(checked: JudgeCheckResult) -> None:
    """Prints the agreement, then the corrected score, then the answers left out."""
    out, c = console(), checked.found
    count = f"{c.labelled} of {c.judged} answers labelled"
    say(out, f"{c.judge or 'the judge'} in {c.run}, rule {c.rule}: {count}", style="bold")
    if c.found is not None:
        largest = sorted(c.slices, key=lambda s: -s.found.n)[:SLICES_SHOWN]
        rows = [("all", *_agreement(c.found))]
        rows += [(f"{s.label}: {s.value}", *_agreement(s.found)) for s in largest]
        heads = ("answers", "labelled", "agreement", "95 % interval", "kappa", "too kind", "too strict")
        show(out, heads, rows)
        what = "too kind: the judge says right, people say wrong; too strict: the opposite"
        say(out, what, fold=True)
    if c.corrected is None:
        say(out, f"no corrected score: {c.why_not}")
    else:
        within = ends(c.corrected.interval, signed, "too few groups")
        said = f"score by the judge {c.corrected.judged:+.3f}; with its errors taken out"
        right = f"{c.corrected.corrected:+.3f}, 95 % interval {within}"
        say(out, f"{said} {right}, from {c.corrected.labelled} labels drawn at random")
    for left, what in (
        (c.unclear, "labels: unclear"),
        (c.unlabelled, "lines: without a label yet"),
        (c.without_judge, "labels: no judge decided the answer"),
        (c.elsewhere, "labels: the run does not give the answer"),
    ):
        if left:
            say(out, f"left out: {left} {what}", fold=True)


def _agreement(a: Agreement) -> tuple[str, ...]:
    kappa = "not known" if a.kappa is None else f"{a.kappa:.3f}"
    wrong = str(a.judge_too_kind), str(a.judge_too_strict)
    return (str(a.n), f"{a.agreement:.3f}", ends(a.interval), kappa, *wrong)


CHARS = 90  # characters shown of a value
DOCUMENTS = 3  # documents shown of a question


def print_preview(console: Console, found: Preview, named: bool) -> None:
    """Prints the format, the fields of each file, and the first row. `named`: the user named the format."""
    how = "as named" if named else "detected; --format names another"
    say(console, f"read as {found.data_format} ({how})", style="bold", fold=True)
    for file in found.files:
        say(console, file.file)
        for role, names in file.fields.items():
            how = " (named)" if role in file.named else ""
            say(console, f"  {role:<14}{' + '.join(names)}{how}")
        if file.unused:
            say(console, f"  {'not read':<14}{', '.join(file.unused)}")
    firsts = {"question": list(_question(found.question)) if found.question else []}
    if (d := found.document) is not None:
        text = f"{d.chars:,} characters: {_cut(d.text)}"
        firsts["document"] = [("id", d.id), ("title", d.title or "none"), ("text", text)]
    for what, lines in firsts.items():
        if lines:
            say(console, f"the first {what}", style="bold", fold=True)
            width = max(len(name) for name, _ in lines) + 1
            below = "\n" + " " * (width + 2)
            say(console, *(f"  {name:<{width}}{value.replace(chr(10), below)}" for name, value in lines))
    for bad in found.bad_lines:
        say(console, f"  {bad}")
    console.print("nothing was stored; without --dry-run the files are read into the store")


def _question(found: FirstQuestion) -> Iterator[tuple[str, str]]:
    yield "query", _cut(found.query)
    answers = found.answers
    shown = " | ".join(map(_cut, answers[:5])) + (f" | ... ({len(answers)} in all)" if answers[5:] else "")
    yield "answer", shown or "none: what is answered is not scored"
    yield "id", found.id
    if found.asked_at:
        yield "time", found.asked_at
    yield from found.labels.items()
    documents = found.documents
    if found.searches_store:
        yield "documents", "no field of documents: the question searches all that the store holds"
    elif not documents:
        yield "documents", "none: the question has nothing to search"
    for number, d in enumerate(documents[:DOCUMENTS], 1):
        named = ", ".join(filter(None, (d.kind, f"{d.chars:,} characters", d.title, d.url)))
        yield f"document {number}", f"{named}: {_cut(d.text)}"
    if len(documents) > DOCUMENTS:
        yield "", f"and {len(documents) - DOCUMENTS} more"


def _cut(text: str) -> str:
    """Joins the lines of a text, and cuts it to CHARS characters."""
    return cut(" ".join(text.split()), CHARS, "...")


def print_made(console: Console, made: MadeQuestionsResult) -> None:
    """Prints the result of `raypipe questions`. Text from data is printed as it is."""
    kinds = ", ".join(f"{kind} {n}" for kind, n in made.kinds.items())
    out, store, wanted = made.out, made.plan.store, made.plan.wanted
    say(console, f"{len(made.kept)} questions of {wanted} wanted ({kinds})", style="bold")
    for q in made.first():
        say(console, f"  {q['question_type']}: {q['question']}", f"    {' | '.join(q['answers'])}")
        for e in q["evidence"]:
            say(console, f"    \u201c{e['quote']}\u201d ({e['title'] or e['document'] or e['source'][:8]})")
    if made.rejected:
        rejected = sorted(made.rejected.items(), key=lambda r: (-r[1], r[0]))
        total = f"{sum(made.rejected.values())} of {made.written} written were rejected:"
        say(console, total, *(f"  {n:>5}  {REASONS[reason]}" for reason, n in rejected), fold=True)
    say(console, f"calls: {made.computed} computed, {made.cached} cached", fold=True)
    say(
        console,
        f'review {out}: a line with `"review": "drop"` is not read, one with keep is marked as reviewed. '
        f"Then: raypipe eval RECIPE --data {out} --store {store}",
    )
