"""No pattern of the package takes more than linear time, whatever text a model, a page or a question has.

A pattern holds the interpreter while it matches: no deadline and no other request comes between.
"""

import ast
import importlib
import re
from pathlib import Path
from re import _constants as sre
from re import _parser  # the standard library has no public tree of a pattern

import pytest
from pattern_growth import SINGLE, growth

import raypipe

CALLS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
ROOT = Path(raypipe.__file__).parent


class Filler(ast.NodeTransformer):
    """A pattern whose parts that no module knows are a word: a name that is only known later."""

    def __init__(self, names):
        self.names = names

    def value_of(self, node):
        try:
            return eval(
                compile(ast.fix_missing_locations(ast.Expression(node)), "pattern", "eval"), self.names
            )
        except Exception:
            return None

    def visit_FormattedValue(self, node):
        return ast.Constant("Word") if self.value_of(node.value) is None else node


def calls_in(tree, names):
    """The patterns of the calls of `re` in a module, compiled; None for one that only its caller knows."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{name}" for name in CALLS}):
            continue
        pattern = Filler(names).value_of(Filler(names).visit(node.args[0]))
        given = [*node.args[1:], *(k.value for k in node.keywords if k.arg == "flags")]
        said = {name for a in given for name in re.findall(r"re\.([A-Z]+)\b", ast.unparse(a))}
        flags = sum(getattr(re, name) for name in said)
        yield f"line {node.lineno}", None if pattern is None else re.compile(pattern, flags)


def patterns_in(value, depth=3):
    """The compiled patterns in a value of a module, and in what it holds."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict | list | tuple | set | frozenset):
        for inner in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from patterns_in(inner, depth - 1)


@pytest.fixture(scope="module")
def patterns():
    """Pattern -> where the package has it, and the places of those that only their callers know."""
    found, unknown = {}, []
    for file in sorted(ROOT.rglob("*.py")):
        text = file.read_text()
        if "re." not in text or "import re\n" not in text:
            continue
        path = file.relative_to(ROOT)
        module = importlib.import_module(
            ".".join(["raypipe", *path.with_suffix("").parts]).removesuffix(".__init__")
        )
        places = [(name, p) for name, value in vars(module).items() for p in patterns_in(value)]
        for where, pattern in [*places, *calls_in(ast.parse(text), vars(module))]:
            if pattern is None:
                unknown.append(f"{path} {where}")
            else:
                found.setdefault((pattern.pattern, pattern.flags), (f"{path} {where}", pattern))
    return list(found.values()), unknown


@pytest.mark.slow
def test_no_pattern_of_the_package_takes_more_than_linear_time(patterns):
    found, unknown = patterns
    slow = {f"{where}: {p.pattern[:80]!r}: {growth(p)}" for where, p in found if growth(p) != "linear"}
    assert not slow, "make loops possessive or bounded, or begin with \\A, \\b or a look-behind"
    assert len(found) > 150
    assert {where.split()[0] for where in unknown} == {
        "models/fake.py",  # of a schema
        "models/generator_files.py",  # of an adapter's own file; marks of a tokenizer, escaped
        "readers/documents/walk.py",  # of a user's globs, by fnmatch
        "store/lease.py",  # the name of a file, escaped
        "text/typed_answers.py",  # those of a table of the module
    }


def subpatterns(value):
    """The parsed patterns in a part of one, and itself."""
    if isinstance(value, _parser.SubPattern):
        yield value
    if isinstance(value, _parser.SubPattern | tuple | list):
        for inner in value:
            yield from subpatterns(inner)


def groups_repeated_possessively(pattern):
    tree = _parser.parse(pattern.pattern, pattern.flags)
    parts = [part for some in subpatterns(tree) for part in some if part[0] is sre.POSSESSIVE_REPEAT]
    return [part for part in parts if len(part[1][2]) != 1 or part[1][2][0][0] not in SINGLE]


@pytest.mark.slow
def test_a_possessive_repeat_is_of_one_character_since_python_before_3_11_5_loses_matches_of_others(patterns):
    found, _ = patterns
    assert [where for where, p in found if groups_repeated_possessively(p)] == []


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (r"(?:a|b(?!c))*+", 1),
        (r"x(?:y|(z+)++)", 1),
        (r"(?=(?:ab)?+)", 1),
        (r"[^*]*+\w++.?+", 0),
        (r"(?>(?:a|b)*)", 0),
    ],
)
def test_a_group_that_repeats_possessively_is_found(pattern, count):
    assert len(groups_repeated_possessively(re.compile(pattern))) == count


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        (r"(?:(?:all|avg|\d+)[\s(]*)*get_\w*", "exponential"),
        (r"(?:all|avg|\d+)[\s(]*get_\w*", "polynomial"),
        (r"\A(?:(?:all|avg|\d++)[\s(]*+)*+get_\w*", "linear"),
        (r"\A(a+)+b", "exponential"),
        (r"\A(?:a|ab|b)*c", "exponential"),
        (r"\A(?:[ab]*?(?<=b))*c", "exponential"),
        (r"\A(?:\w{1,9})*c", "exponential"),
        (r"\A\s*,?\s*x", "polynomial"),
        (r"\A\s*+,?\s*x", "linear"),
        (r"\A\w*\w++x", "polynomial"),
        (r"\A(?>.*?a).*b", "linear"),
        (r"\A(?>[bc]?)*?[ab]+c", "polynomial"),
        (r"\A(?:[^*]|\*(?!/))*\*/", "linear"),
        (r"\{[^}]*\}", "polynomial"),
        (r"\{[^{}]*\}", "linear"),
        (r"\{[^}]*+\}?", "linear"),
        (r"\d+%", "polynomial"),
        (r"\b\d+%", "linear"),
        (r"(?<!\d)\d+%", "linear"),
        (r"\d{1,40}%", "linear"),
        (r"^[\s>]*end", "linear"),
        (r"(?m)^[\s>]*end", "polynomial"),
        (r"(?m)^[ >]*end", "linear"),
        (r"a(?:b*c)?|b", "linear"),
        (r"a(?:[ab]*c)?", "polynomial"),
        (r'"(?:[^"\\]|\\.)*"', "polynomial"),
        (rb"\s*<\?xml", "polynomial"),
    ],
)
def test_the_growth_of_a_pattern_is_found(pattern, kind):
    assert growth(re.compile(pattern)) == kind
