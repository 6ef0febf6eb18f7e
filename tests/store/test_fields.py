"""Fields of sources and conditions on them: the same rows as LanceDB's own filter finds, null included."""

import lance
import pyarrow as pa
import pytest

from raypipe.core import arrow
from raypipe.core.records import Citation, Document, Layout, Question, source_id
from raypipe.store.fields import SourceFields
from raypipe.text.filters import ConditionError, Filters

TEAMS = ["hr", "legal", "it's", None, "a%b_c", "HR", "' or 1=1 --"]
ROWS = [
    {
        "team": TEAMS[n % 7],
        "year": None if n % 5 == 0 else float(n - 8),
        "pinned": [True, False, None][n % 3],
        "date": None if n % 4 == 3 else f"2025-{n % 12 + 1:02d}-1{n % 10}",
        "size": n / 4 - 2,
    }
    for n in range(60)
]


def text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else value


def store_of(tmp_path, documents, layouts=(), questions=()):
    def written(name, table):
        return lance.write_dataset(table, tmp_path / name)

    return SourceFields.read(
        written("documents", arrow.document.table(documents)),
        written("layouts", arrow.layout.table(layouts)) if layouts else None,
        written("questions", arrow.question.table(questions)),
    )


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fields")
    given = ({name: text(v) for name, v in row.items() if v is not None} for row in ROWS)
    documents = [
        Document(f"d{n:02d}", "", source_id("document", f"text {n}"), dict(sorted(fields.items())))
        for n, fields in enumerate(given)
    ]
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    table = pa.table({**columns, "source": [d.source for d in documents]})
    return store_of(folder, documents), lance.write_dataset(table, folder / "typed")


CONDITIONS = [
    "team = 'hr'",
    "team != 'hr'",
    "not team = 'hr'",
    "team <> 'it''s' or team is null",
    "team is not null",
    "team in ('hr', 'legal')",
    "team not in ('hr', 'legal')",
    "not (team in ('hr') or year > 3)",
    "year >= 10 and year < 20",
    "year between 3 and 9",
    "year not between 3 and 9",
    "year = -3",
    "year > 1e1",
    "size <= .5 or size > 12.25",
    "pinned = true",
    "pinned != true",
    "not pinned = false",
    "pinned is null",
    "date >= '2025-06-01' and date < '2025-09-01'",
    "date = '2025-02-11'",
    "date is null and team = 'legal'",
    "team like 'h%'",
    "team like '%'",
    "team not like '%s'",
    "team like '_r'",
    r"team like 'a\\%b%'",
    "TEAM = 'HR' AND NOT YEAR IS NULL",
    "team = ''' or 1=1 --'",
    "year = 1 or year = 2 and pinned = true",
    "((team = 'hr')) and not (not (year > 0))",
    "team < 'hr'",
    "`date` > '2025-11-01'",
    "year in (1, 2, 3.0)",
    "team = 'hr' and (year > 0 or pinned = true)",
    "(team = 'x' or year > 5) is null",
]


@pytest.mark.parametrize("where", CONDITIONS[:-1])
def test_a_condition_finds_what_lancedb_finds_by_the_same_text(both_ways, where):
    fields, typed = both_ways
    wanted = sorted(typed.to_table(["source"], filter=where)["source"].to_pylist())
    assert list(fields.within(Filters(where=where)).ids) == wanted
    wanted = typed.to_table(["source"], filter=f"({where}) and (size > 0)")["source"].to_pylist()
    narrower = fields.within(Filters(where=where)).within(Filters(where="size > 0"))
    assert list(narrower.ids) == sorted(wanted)


REFUSED = [
    " ",
    "1=1",
    "true",
    "team = 'hr' or 1=1",
    "team = team",
    'team = "hr"',
    "lower(team) = 'hr'",
    "cast(year as text) = '1'",
    "team::text = 'hr'",
    "team in (select team)",
    "team = 'hr' --",
    "team = 'hr'; drop",
    "team = 'hr' /* x */",
    "exists (select 1)",
    "team = 'hr' union select",
    "team = 'hr') or (team = 'legal'",
    "team = 'hr",
    "team ilike 'h%'",
    "date + 1 > 2",
    "team = null",
    "_rowid > 0 or",
    "team = 0x1",
    "case when 1",
    "team \uff1d 'hr'",
    "team = \u2018hr\u2019",
    "(" * 200 + "team = 'hr'",
    "year in ()",
    "year in (1, 'x')",
    CONDITIONS[-1],
    "not " * 30 + "year = 1",
    "year = 1e999",
    "team = 'x' or " * 2000 + "year = 1",
]


@pytest.mark.parametrize("where", REFUSED)
def test_what_is_no_condition_is_refused_without_a_word_of_it(where):
    with pytest.raises(ConditionError) as refused:
        Filters(where=where)
    assert "\uff1d" not in str(refused.value) and "select" not in str(refused.value)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("t\u0435am = 'hr'", "expected a field that documents here have: date (date), pinned (boolean)"),
        ("owner is null", "size (number), team (text), year (number)"),
        ("year = '3'", "year: expected a number without quotes, since its type is number"),
        ("team > 3", "team: expected a text in single quotes"),
        ("pinned = 'true'", "pinned: expected true or false"),
        ("date > '2025'", "date: expected a day, such as '2025-01-31'"),
        ("date > 2025", "date: expected a day"),
        ("year like '1%'", "year: expected a number"),
    ],
)
def test_a_condition_that_the_fields_do_not_fit_is_refused_with_those_that_there_are(both_ways, where, said):
    with pytest.raises(ConditionError) as refused:
        both_ways[0].check(where)
    assert said in str(refused.value)


def test_every_source_has_a_place_and_a_day(tmp_path):
    plan, page, snippet = (source_id("document", t) for t in ("plan", "page", "snippet"))
    cited = (
        Citation("q", 0, "https://en.example.org/a", "Fri, 01 Mar 2024 10:00:00 GMT", page, snippet, None),
        Citation("q", 1, "hr/plan.md", "", plan, None, None),
    )
    documents = [
        Document("f/hr/plan%202024-05-06.md", "Plan", plan, {"team": "hr"}),
        Document("f/hr/plan.md", "Plan", plan, {"team": "hr", "date": "2023-01-02"}),
        Document("f/legal/plan.md", "Old plan", plan, {"team": "legal"}),
    ]
    time = "2025-03-01T09:30:00"
    layouts = [Layout(d.id, d.source, d.id.removeprefix("f/"), d.title, (), (), time) for d in documents]
    fields = store_of(tmp_path, documents, layouts, [Question("q", "who?", citations=cited)])
    assert {f.name: f.type for f in fields.fields()} == {
        "date": "date",
        "folder": "text",
        "host": "text",
        "team": "text",
        "title": "text",
        "url": "text",
    }

    def found(where):
        return fields.within(Filters(where=where)).ids

    assert found("host = 'en.example.org' and date = '2024-03-01'") == tuple(sorted((page, snippet)))
    for where in ("date = '2024-05-06'", "date = '2023-01-02'", "date = '2025-03-01' and folder = 'legal'"):
        assert found(where) == (plan,)
    assert found("url like 'hr/%' and team = 'hr'") == (plan,)
    here = fields.within(Filters(where="team = 'hr' and date = '2024-05-06'"))  # the file of that day alone
    for name in ("hr/plan 2024-05-06.md", "hr/plan%202024-05-06.md"):  # as it is written, as replies have it
        assert here.within(Filters(where=f"url = '{name}' and url like '{name[:9]}%'")).ids == (plan,)
        assert here.within(Filters(where=f"url in ('{name}')")).ids == (plan,)
        assert here.within(Filters(where=f"url != '{name}' or not (url = '{name}')")).ids == ()
    # Of the question's own pages the one that stands where the condition holds, and no other with its text.
    assert fields.narrowed(cited, Filters(where="team = 'hr'")) == cited[1:]
    assert fields.narrowed(cited, Filters(where="team = 'legal'")) == ()
    assert fields.narrowed(cited, Filters(("example.org",), (page,)))[0].sources() == (page,)
    [visible] = fields.within(Filters(where="team = 'legal'")).citations("q")
    assert visible.url == "legal/plan.md", "the place that matches is named"
