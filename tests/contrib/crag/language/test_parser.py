"""The call language: what parses, what is refused and where; printing loses nothing; decoding fits."""

import random

import lark
import pytest
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from raypipe.contrib.crag.language.parser import parser
from raypipe.contrib.crag.language.program import (
    FUNCTIONS,
    Bad,
    Cond,
    Empty,
    Mean,
    Names,
    Nothing,
    Number,
    Program,
    Query,
    Sort,
    Star,
    Tail,
    Text,
    print_program,
)

GRAMMAR = (ROOT / "conf/grammar/calls.lark").read_text(encoding="utf-8")
parse = parser(GRAMMAR)

WORKED = (
    'get_movie("greater meaning of water")["release_date"]\nget_movie("small town ecstasy")["release_date"]',
    'get_movie_person_oscar(None,None,[eq(year,2012),eq(category,"best actor"),eq(winner,"true")])["name"]',
    'get_movie_person_crew(None,"walt becker",eq(job,"Director"))\nsort(None,-year)["movie_name"]',
    'get_movie_person_cast(None,["Zak Santiago","Brenda Crichlow"],None)["len"]',
    'get_movie_person_crew(None,"walt becker",eq(job,"Director"))\nsort(None,-year)["movie_name"][:3]',
    'ALL get_movie("maze runner")["title"]',
    'get_stock_price("x","last monday","last friday")\nsort(ge(open,close),"time")["time"]',
    'get_stock_dividend("microsoft")\nsort([ge("date","2024-01-01"),le("date","2024-03-31")],-date)["date"]',
    "None",
)


def good(text: str) -> Program:
    program = parse(text)
    assert not [line for line in program.lines if isinstance(line, Bad)], program
    return program


@pytest.mark.parametrize("text", WORKED)
def test_the_worked_examples_parse_and_printing_them_loses_nothing(text):
    program = good(text)
    assert len(program.lines) == len(text.split("\n"))
    assert parse(print_program(program)) == program


def test_a_call_with_everything_has_every_part():
    text = 'ALL 3 get_movie_person_cast(None, ["a", b], [neq(year, 1.5), 1999])["name"]["len"][:2]'
    assert good(text).lines == (
        Query(
            "get_movie_person_cast",
            (Nothing(), Names((Text("a"), Text("b", bare=True)))),
            (Cond("neq", "year", Number(1.5)), Cond("eq", "year", Number(1999))),
            Tail("name", True, 2),
            True,
            3,
        ),
    )
    assert good("average(get_movie(*)[rating])").lines == (
        Mean(Query("get_movie", (Star(),), (), Tail("rating"))),
    )
    assert good('sort(None, -"release_date")').lines == (Sort((), "release_date", True),)


@pytest.mark.parametrize("separator", ["\n", ";", "; ", ",", ", ", "\r\n", " ;\n\n "])
def test_lines_are_cut_at_new_lines_semicolons_and_commas_between_them(separator):
    text = f'get_movie_person_crew(None, "a, b; c", 1997){separator}sort(None, -year)["movie_name"]'
    query, sort = good(text).lines
    assert (query.args[1], sort.key) == (Text("a, b; c"), "year")
    assert query.where == (Cond("eq", "year", Number(1997)),), "a bare number is a year"


ALLS = ("ALL, ALL get_song(x)", "ALL\nget_song(x)", "all ALL all get_song(x)", "ALL get_song(x)")


@pytest.mark.parametrize("text", ALLS)
def test_any_number_of_all_is_one(text):
    assert good(text).lines == (Query("get_song", (Text("x", bare=True),), everything=True),)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"Say \\"hi\\" \\\\ now"', Text('Say "hi" \\ now')),
        ("'maze runner'", Text("maze runner")),
        ("“maze runner”", Text("maze runner")),
        ("schindler's list", Text("schindler's list", bare=True)),
        ("12 angry men", Text("12 angry men", bare=True)),
        ("1984", Number(1984)),
        ("-2.5", Number(-2.5)),
        ("none", Nothing()),
        (" * ", Star()),
        ("中文 é", Text("中文 é", bare=True)),
    ],
)
def test_names_may_be_quoted_bare_or_numbers(text, value):
    program = good(f"GET_OPEN( {text} )")
    assert program.lines[0].args == (value,)
    assert parse(print_program(program)) == program


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('get_movies("x")', "line 1, column 1: there is no call get_movies; did you mean get_movie?"),
        ('ALL gte_movie("x")', "line 1, column 5: there is no call gte_movie; did you mean get_movie?"),
        ("get_movie(", "column 11: expected [ or * or a quoted name or a name, found the end of the line"),
        ('get_movie("x"', "column 14: expected a comma or ), found the end of the line"),
        ('get_movie("x"))', "column 15: expected the end of the line, found ')'"),
        ('get_movie("x", "y")', "column 16: expected eq, neq, ge, le, gt or lt"),
        ('get_stock_price("x")', "column 20: expected a comma, found ')'"),
        ("sort(None, )", "column 12: expected a key or - or a quoted name"),
        ('get_movie("x")[:0]', "column 17: expected a number, found '0]'"),
        ("ALL", "column 1: expected a call after ALL"),
        ('__import__("os").system("id")', "there is no call __import__"),
        ('get_movie("x"; DROP TABLE movie)', "column 14"),
    ],
)
def test_a_bad_line_says_where_and_what_was_expected(text, says):
    bad = parse(text).lines[0]
    assert isinstance(bad, Bad)
    assert says in bad.why
    assert 0 <= bad.at <= len(text)


@pytest.mark.parametrize(
    "bad",
    ['get_nothing("x")', 'get_movie("x', 'get_movie("x\\', "get_movie([[[", "))", '"', "sort(", "\x00\x01"],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_bad_line_leaves_the_other_two(bad, at):
    lines = ['get_movie("a")["title"]', 'get_movie("b")["title"]']
    lines.insert(at, bad)
    program = parse("\n".join(lines))
    assert [isinstance(line, Bad) for line in program.lines] == [i == at for i in range(3)]
    assert program.lines[at].why.startswith(f"line {at + 1}, ")


def test_a_text_far_too_long_or_with_far_too_many_lines_is_one_bad_line_in_no_time():
    assert parse("get_movie(" * 100_000).lines[0].why == (
        "expected a program of at most 20000 characters, found 1000000"
    )
    many = parse("None\n" * 1000)
    assert len(many.lines) == 65 and isinstance(many.lines[-1], Bad) and many.lines[0] == Empty()


# ---------------------------------------------------------------- whatever can be said

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=90).map(
    lambda s: Text(s.strip() or s)
)
NUMBERS = st.one_of(st.integers(-(10**11), 10**11), st.integers(-(10**9), 10**9).map(lambda n: n / 1000)).map(
    Number
)
KEYS = st.one_of(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True), NAMES.map(lambda t: t.value))
CONDS = st.builds(
    Cond,
    st.sampled_from(["eq", "neq", "ge", "le", "gt", "lt"]),
    KEYS,
    st.one_of(NAMES, NUMBERS, st.just(Star()), st.just(Nothing())),
)
WHERE = st.lists(CONDS, max_size=4).map(tuple)
TAILS = st.builds(
    Tail,
    st.none() | KEYS.filter(lambda k: k.lower() != "len"),
    st.booleans(),
    st.none() | st.integers(1, 999),
)
LISTS = st.lists(st.one_of(NAMES, NUMBERS), min_size=1, max_size=4).map(lambda x: Names(tuple(x)))
ARGS = st.one_of(NAMES, NUMBERS, st.just(Nothing()), st.just(Star()), LISTS)
ARITY = {"get_stock_price": (2, 3), "get_nba_on_date": (2, 2), "get_soccer_on_date": (2, 2)}


@st.composite
def queries(draw):
    name = draw(st.sampled_from(FUNCTIONS))
    low, high = (2, 2) if name.startswith("get_movie_person") else ARITY.get(name, (1, 1))
    args = tuple(draw(st.lists(ARGS, min_size=low, max_size=high)))
    takes = name.startswith(("get_movie", "get_person"))
    where = draw(WHERE) if takes else ()
    return Query(name, args, where, draw(TAILS), draw(st.booleans()), draw(st.none() | st.integers(1, 999)))


SORTS = st.builds(Sort, WHERE, KEYS, st.booleans(), TAILS)
LINES = st.one_of(queries(), SORTS, st.builds(Mean, st.one_of(queries(), SORTS)), st.just(Empty()))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=4))
def test_whatever_can_be_said_prints_and_parses_again(lines):
    program = Program(tuple(lines))
    assert parse(print_program(program)) == program


# ---------------------------------------------------------------- decoding

VOCABULARY = [chr(i) for i in range(32, 127)] + [
    "\n",
    "é",
    "get_",
    "movie",
    "person",
    "_cast",
    "stock",
    "_price",
    "song",
    "open",
    "eq(",
    "None",
    "sort(",
    '"]',
    '["',
    ", ",
    ")",
    '")',
    "ALL ",
    "year",
    "name",
    "the ",
    "AVG(",
    "release_date",
    "[:",
    "len",
    "</s>",
]


def random_reply(xgrammar, matcher, rng, bitmask) -> tuple[str, int]:
    """A model that knows nothing: any allowed token is as likely as any other."""
    matcher.reset()
    out, tokens = b"", 0
    while True:
        matcher.fill_next_token_bitmask(bitmask)
        row = bitmask[0].tolist()
        allowed = [i for i in range(len(VOCABULARY)) if row[i // 32] >> (i % 32) & 1]
        token = rng.choice(allowed)
        assert matcher.accept_token(token)
        if VOCABULARY[token] == "</s>":
            return out.decode(), tokens
        out, tokens = out + VOCABULARY[token].encode(), tokens + 1


@pytest.mark.slow
def test_a_decoder_constrained_by_the_grammar_ends_by_itself_and_writes_only_what_parses():
    xgrammar = pytest.importorskip("xgrammar", reason="xgrammar comes with the engine's extra")
    info = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[len(VOCABULARY) - 1])
    compiled = xgrammar.GrammarCompiler(info).compile_lark(GRAMMAR)
    matcher = xgrammar.GrammarMatcher(compiled)
    bitmask = xgrammar.allocate_token_bitmask(1, len(VOCABULARY))
    rng = random.Random(5)
    lengths = []
    for _ in range(100):
        text, tokens = random_reply(xgrammar, matcher, rng, bitmask)
        good(text)
        lengths.append(tokens)
    print(f"tokens of 100 random replies: median {sorted(lengths)[50]}, most {max(lengths)}")
    assert max(lengths) < 8_000


@pytest.mark.parametrize("text", [*WORKED, *ALLS, 'get_movie_person_crew("batman","Jack",1997)'])
@pytest.mark.slow
def test_the_worked_examples_as_they_are_printed_may_be_written_by_a_constrained_decoder(text):
    xgrammar = pytest.importorskip("xgrammar", reason="xgrammar comes with the engine's extra")
    info = xgrammar.TokenizerInfo([*map(chr, range(127)), "</s>"], stop_token_ids=[127])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_lark(GRAMMAR))
    assert all(matcher.accept_token(ord(c)) for c in print_program(parse(text)))
    assert matcher.accept_token(127)


def test_a_character_that_no_text_has_counts_once_however_it_was_read():
    name = "a" * 98 + "\ufffd\ufffd\ufffd" + "z"  # what a decoder counted as a hundred characters
    [line] = parse(f"get_open({name})").lines
    assert line == Query("get_open", (Text("a" * 98 + "\ufffdz", bare=True),))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('get_movie("velora")["length"]', True),
        ('ALL 3 get_movie("velora")', True),
        ('get_movie_person_cast(None, ["a b", "c"], eq(year, 2012))["name"]\nsort(None, -year)["len"]', True),
        ("None", True),
        ('100 get_movie("velora")', False),
        ('GeT_MoVie("velora")', False),
        ('get_movie_person_cast(None,"a",None)', False),
        ('get_movie("a"), get_movie("b")', False),
        ('ALLget_movie("a")', False),
        ("none", False),
    ],
)
def test_decoding_is_held_to_the_canonical_form_and_reading_is_not(text, canonical):
    good(text)
    try:
        lark.Lark(GRAMMAR, parser="earley").parse(text)
        held = True
    except lark.exceptions.UnexpectedInput:
        held = False
    assert held == canonical
