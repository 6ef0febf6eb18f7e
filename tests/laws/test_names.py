"""Names in back-ticks exist: modules, what is in them, paths, commands, flags; on pages and in docstrings.
Dotted names and files without them exist too, there and in comments.

Of raypipe only the parser of the command line is imported: a module holds what its text defines. Names of
other projects stand in ELSEWHERE.
"""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from prose import (
    MODULES,
    PAGES,
    ROOT,
    SRC,
    Piece,
    commands,
    comments,
    docstrings,
    folded,
    names,
    strings,
)

pytestmark = pytest.mark.slow  # a thousand files
HERE = Path(__file__)
ELSEWHERE = """
    ray.init dataclasses.asdict pa.Table Random.choice write_lance merge_insert save_pretrained
    rank_bm25 _calc_idf BeautifulSoup CharacterTextSplitter get_batch_size mtime_ns models/user_config.py
    MALLOC_MMAP_THRESHOLD_ RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE ReadWriteMany AWS_ACCESS_KEY_ID
    engines.answer engines.replicas engines.wait_s limits.max_ongoing_requests
    replies.NAME words_NAME starts_NAME ray_ get_ keys.env
    movie.parquet cast.csv oscar.json team.sport price_detail.time
    math.inf sqlite3.Error asyncio.run html.parser ray.io example.org spec.networkPolicy
    stage.field domain.name run.name run.parts hits.NAME pools.answer
    mine.yaml mypkg/steps.py mypkg/steps.lock shout.yaml mypkg/readers.py mypkg/metrics.py
    best.S margin.S label.R from.R asked.K extract.threshold decide.fitted
    mypkg/kinds.py mypkg/judges.py mypkg/loaders.py mypkg/docling.py raypipe.plugins
    glossary/plugin.py glossary/references.py glossary/steps.py glossary/losses.py glossary/readers.py
    glossary/commands.py glossary/conf/recipes/define.yaml
    RAY_PROMETHEUS_HOST graphs.txt timeline.json timeline.svg storageClassName csv.reader csv.Error
    Date.toString numbering.xml Document.xml
    Dataset.map_batches ray.data.Dataset ray.data.llm ds.stats HTTPS_PROXY
    movie.csv company.csv entity.csv tokenizer_config.json metadata.csv
"""
TICKED = re.compile(r"(?<!`)`([^`]+)`(?!`)")
BARE = re.compile(r"(?<![\w`/.@:{$-])[A-Za-z_][\w/]*(?:\.[A-Za-z_]\w*)+(?![\w`/@-])")
DATA = re.compile(r"\.(json|jsonl|html|txt|bin|safetensors|trec|parquet|ipynb|gz|bz2)$")  # of runs and models
EXAMPLE = re.compile(r"(?m)^(?: {4}|>>> |\.\.\. ).*$|^.*\u2192.*$")  # on a page: code, and names of the past
BLOCK = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^(?: {4}|\$ )((?:raypipe|python|ray|make) [^#\n]*)", re.MULTILINE)
LINK = re.compile(r"\]\((?!http)([^)#]+)")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
WORD = re.compile(r"[A-Za-z_]\w*")
PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
ENDS = (".py", ".md", ".yaml", ".lark", ".lock", ".toml")
FOREIGN = {"ray", "kubectl"}  # programs whose options are not ours
SCRIPT = re.compile(r"(?:python )?((?:bench|jobs|tests)/\w+\.py)(.*)")


# ---- what there is


@cache
def files():
    """Paths of the repository's files and of the folders above them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().splitlines()
    found = {f for f in listed if (ROOT / f).is_file()}
    return found | {"/".join(f.split("/")[:n]) for f in found for n in range(1, f.count("/") + 1)}


@cache
def modules():
    """Dotted name of a module -> name that it defines or imports -> if that is a class, the names in it."""
    found = {}
    for file in [*MODULES, SRC / "__init__.pyi"]:
        parts = file.relative_to(SRC.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = found.get(name, {}) | dict(defined(ast.parse(file.read_text(encoding="utf-8"))))
    return found


def defined(node):
    for child in node.body:
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, {}
            case ast.ClassDef(name=name):
                yield name, dict(defined(child))
            case ast.Assign(targets=targets):
                yield from ((n.id, {}) for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, {}
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((a.asname or a.name, {}) for a in names)
            case ast.If() | ast.Try():
                yield from defined(child)


@cache
def words():
    """Every word of code, of strings that are no docstrings, and of settings."""
    found = set()
    for path in files():
        file = ROOT / path
        if file == HERE:
            continue
        if file.suffix == ".py":
            said = (*names(file), *(piece.text for piece in strings(file)))
            found |= {w for text in said for w in WORD.findall(text)}
        elif path.startswith(("conf/", "k8s/", "serve/", "src/", "Makefile", "pyproject")) and file.is_file():
            found |= set(WORD.findall(file.read_text(encoding="utf-8")))
    return found | {w for path in files() for w in WORD.findall(path)}


@cache
def options():
    """Words of a command -> its options, and the names of its commands."""
    from raypipe.api.cli.main import parser

    found = {}
    for path, command in commands(parser()):
        below = {n for a in command._actions if isinstance(a.choices, dict) for n in a.choices}
        found[path] = (set(command._option_string_actions), below)
    return found


@cache
def flags():
    """Every option of every command and script."""
    scripts = {ROOT / f for f in files() if f.startswith(("bench/", "jobs/", "tests/")) and f.endswith(".py")}
    written = {flag for file in scripts - {HERE} for flag in FLAG.findall(file.read_text(encoding="utf-8"))}
    return written.union(*(own for own, _ in options().values()))


JOBS = {"reprocess": "eval --changes"}
"""Script of jobs/ -> its command, where that has another name."""


# ---- whether it is there


@cache
def places(first):
    """The paths of modules that end with a name, and what is in the classes of that name."""
    starts = {m[: at.end()] for m in modules() for at in re.finditer(rf"\b{first}\b", m)}
    return starts, [found[first] for found in modules().values() if found.get(first)]


@cache
def is_name(text):
    """Whether a dotted name leads into raypipe: from a package, a module, or a class.

    >>> is_name("text.nowhere.sentences"), is_name("raypipe.text.page_parser"), is_name("Memo.nothing")
    (False, True, False)
    """
    first, *rest = text.split(".")
    starts, classes = places(first)
    return any(below(start, rest) for start in starts) or any(within(names, rest) for names in classes)


def below(module, rest):
    while rest and f"{module}.{rest[0]}" in modules():
        module, rest = f"{module}.{rest[0]}", rest[1:]
    return module in modules() and (not rest or within(modules()[module], rest))


def within(names, rest):
    return rest[0] in names and (len(rest) == 1 or not names[rest[0]] or within(names[rest[0]], rest[1:]))


def is_path(text):
    """Whether a file or folder is there, from the root or at the end of a longer path. `*` and NAME: any."""
    pattern = re.sub(r"\\\*|\b[A-Z]+\b", ".*", re.escape(text.rstrip("/")))
    return any(re.search(rf"(^|/){pattern}$", f) for f in files())


def wrong_flags(text, known):
    unknown = set(FLAG.findall(text)) - known
    return f"no option {', '.join(sorted(unknown))}" if unknown else ""


def wrong_command(text):
    """What is wrong with the words after `raypipe`."""
    path = ()
    for word in text.split():
        names = options()[path][1]
        if not names or not re.fullmatch(r"[a-z][a-z-]*", word):
            break
        if word not in names:
            return f"no command {word}"
        path = (*path, word)
    own, names = options()[path]
    return wrong_flags(text, flags() if names else own)


def wrong_script(file, rest):
    """What is wrong with a call of a script; those of jobs/ are commands."""
    if not is_path(file):
        return "no such file"
    if file.startswith("jobs/"):
        return wrong_command(f"{JOBS.get(Path(file).stem, Path(file).stem)} {rest}")
    return wrong_flags(rest, set(FLAG.findall((ROOT / file).read_text(encoding="utf-8"))))


@cache
def wrong(text):
    """What is wrong with a text in back-ticks, or a line for a shell; "" for nothing."""
    bare = re.sub(r"\(.*\)$", "", text)
    first = text.split()[0]
    if {text, bare, bare.split("(")[0]} & set(ELSEWHERE.split()):
        return ""
    if first == "raypipe" and " " in text:
        return wrong_command(text.removeprefix("raypipe "))
    if script := SCRIPT.search(text):
        return wrong_script(*script.groups())
    if FLAG.search(text) and first not in FOREIGN:
        return wrong_command(text) if (first,) in options() else wrong_flags(text, flags())
    if PATH.fullmatch(text) and (text.endswith(ENDS) or ("/" in text and text.split("/")[0] in files())):
        return "" if is_path(text) else "no such path"
    if DOTTED.fullmatch(bare) and not bare.split(".")[0].isupper():
        return "" if is_name(bare) else "no such name"
    if WORD.fullmatch(bare) and (bare != text or re.search(r"[A-Z_]", bare)):
        known = bare in words() or any(bare in word for word in words() if word.startswith("test_"))
        return "" if known else "no such word"
    return ""


def ticked(file):
    """Texts in back-ticks, and commands in blocks; of a module also commands that its messages name."""
    if file.suffix == ".md":
        text = file.read_text(encoding="utf-8")
        prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
        for found in [*SHELL.finditer(text), *TICKED.finditer(prose)]:
            yield Piece(file, 1 + text[: found.start()].count("\n"), folded(found[1]))
    else:
        for piece in docstrings(file):
            yield from (Piece(file, piece.line, text) for text in TICKED.findall(piece.text))
        for piece in strings(file):
            found = (text for text in TICKED.findall(piece.text) if text.startswith("raypipe "))
            yield from (Piece(file, piece.line, text) for text in found)


def name(file):
    return str(file.relative_to(ROOT))


def absent(pieces):
    """Lines that say where each of these pieces stands that names nothing, and why."""
    return [f"{piece}: {piece.text}: {why}" for piece in pieces if (why := wrong(piece.text))]


def test_what_stands_in_back_ticks_exists():
    found = absent(piece for file in [*PAGES, *MODULES] for piece in ticked(file))
    assert not found, "\n".join(found)


SETTINGS = [
    f
    for folder in ("conf", "k8s", "serve")
    for f in sorted((ROOT / folder).rglob("*.yaml"))
    if ROOT / "conf" / "prompts" not in f.parents
]
SCRIPTS = [f for folder in ("bench", "jobs", "serve") for f in sorted((ROOT / folder).rglob("*.py"))]


def bare(file):
    """Dotted names and files that stand without back-ticks in prose."""
    if file.suffix == ".md":
        prose = EXAMPLE.sub("", BLOCK.sub("", file.read_text(encoding="utf-8")))
        pieces = [Piece(file, 1, folded(prose))]
    else:
        pieces = [*comments(file), *(docstrings(file) if file.suffix == ".py" else ())]
    for piece in pieces:
        text = re.sub(r">>>.*", "", TICKED.sub("", piece.text))
        found = (m for m in BARE.findall(text) if not DATA.search(m))
        yield from (Piece(file, piece.line, text) for text in found)


def test_what_is_named_without_back_ticks_exists():
    found = absent(piece for file in [*PAGES, *MODULES, *SCRIPTS, *SETTINGS] for piece in bare(file))
    assert not found, "\n".join(found)


def test_what_a_page_links_to_exists():
    linked = [(page, to) for page in PAGES for to in LINK.findall(page.read_text(encoding="utf-8"))]
    assert [(name(page), to) for page, to in linked if not (page.parent / to).exists()] == []


MISSING = """
    raypipe nothing; memo.Nothing; raypipe.nothing; kg.language.nothing; Memo.nothing; NoSuchClass
    nosuch_thing(); raypipe eval --nothing; raypipe kg nothing; --nothing; plan --nothing; src/nothing.py
    nothing.py; bench/nothing.py --seed 1; bench/drills/kills.py --nothing
    python jobs/eval.py local --nothing; docs/none.md
"""
THERE = """
    raypipe.contrib.crag.language.parser;
    core.records.Question; Question.due; records.Question; raypipe COMMAND; --seed
    raypipe eval RECIPE --judge MODEL; plan --refresh; raypipe kg run; conf/prompts/SYSTEM/NAME.yaml
    conf/recipes/; bench/drills/kills.py --kills 3; python jobs/eval.py local --data x; two words
"""


def test_a_name_without_back_ticks_is_found_in_comments_docstrings_and_on_pages(tmp_path):
    module, page = tmp_path / "x.py", tmp_path / "x.md"
    module.write_text(
        '"""Calls memo.nothing, not `memo.other`."""\n\nx = 1  # as nothing.py says, of a.json\n'
    )
    page.write_text("See cluster.Nothing.\n\n    run.this()\n\n| Old.name \u2192 `New.name` |\n")
    assert [p.text for f in (module, page) for p in bare(f)] == [
        "nothing.py",
        "memo.nothing",
        "cluster.Nothing",
    ]
    assert all(wrong(p.text) for f in (module, page) for p in bare(f))


def test_a_name_that_is_not_there_is_found_and_no_other():
    missing, there = (re.split(r"\s*[;\n]\s*", texts.strip(" ;\n")) for texts in (MISSING, THERE))
    assert [text for text in missing if not wrong(text)] == []
    assert [text for text in there if wrong(text)] == []
