"""Commands in pages, as they stand there, and how a test runs them.

They stand in blocks marked `sh`, or indented by four. In a block with a `$` each command begins with one, and
the lines below it are what it prints; in every other block each line is a command.
"""

import glob
import re
import shlex
from typing import NamedTuple

from checkout import ROOT, SUPPORT

from raypipe.api.cli.main import main

MARKED = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?m)(?:^    .*\n(?:^\n(?=    ))?)+")


class Command(NamedTuple):
    text: str
    shown: list  # lines that it is shown to print


def page(name):
    """The text of a page, by its path in the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


def script(text):
    """The marked blocks of a page, in order, for a shell."""
    return "".join(MARKED.findall(text))


def indented(text):
    """The indented blocks of a page."""
    return [re.sub(r"(?m)^    ", "", block) for block in INDENTED.findall(MARKED.sub("", text))]


def commands(block):
    """The commands of a block, with what each is shown to print."""
    lines = [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    if not any(line.startswith("$ ") for line in lines):
        return [Command(line, []) for line in lines]
    found = []
    for line in lines:
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            found[-1].shown.append(line.strip())
    return found


def computing(folder):
    """A folder of settings before the shipped ones: the same names on models that compute from words, which
    a worker need not load."""
    folder.mkdir()
    (folder / "models.yaml").write_bytes((SUPPORT / "fake_models.yaml").read_bytes())
    return folder


def words(command):
    """The words of a command, as a shell gives them to it: without a comment, patterns filled in."""
    found = shlex.split(re.sub(r"\s#.*", "", command))  # to shlex the # of URL#MODEL is a comment, too
    return [name for word in found for name in (sorted(glob.glob(word)) or [word])]


def ran(arguments, capsys):
    """What `raypipe` prints with these words; it must end well."""
    code = main(arguments)
    printed = capsys.readouterr()
    assert code == 0, (arguments, printed.out[-2000:], printed.err[-3000:])
    return printed.err + printed.out
