"""The step of docs/extend.md in a folder of its own, as its three parts are written there, word for word."""

import re
import shlex
import textwrap

from checkout import ROOT

PAGE = ROOT / "docs/extend.md"


def section():
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index("## A step") : text.index("## A reader")]


def block(language):
    """The one block of the section in this language."""
    [found] = re.findall(rf"^ *```{language}\n(.*?)^ *```", section(), re.DOTALL | re.MULTILINE)
    return textwrap.dedent(found)


def write(folder):
    """Writes the section's files into a folder."""
    names = re.findall(r"`([a-z/]+\.(?:py|yaml))`:$", section(), re.MULTILINE)
    assert names == ["mypkg/steps.py", "shout.yaml"]
    for name, language in zip(names, ("python", "yaml"), strict=True):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block(language))


def commands(places):
    """The section's commands as arguments of `raypipe`, with folders of the test in place of its own."""
    lines = block("sh")
    for shown, real in places.items():
        lines = lines.replace(shown, str(real))
    found = [shlex.split(line) for line in lines.splitlines()]
    assert all(words[0] == "raypipe" for words in found)
    return [words[1:] for words in found]
