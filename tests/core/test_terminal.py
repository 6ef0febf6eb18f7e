"""Words of a page reach a terminal as text, and never as a command."""

import io
import json
import re
import sys

from rich.progress import BarColumn, Progress
from rich.text import Text

from raypipe.api.cli.main import main
from raypipe.core.terminal import open_console, shown, shown_streams
from raypipe.evaluation.report.console import show

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mall well\x1b[0m\x9b2J\u202eevil\r"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(do):
    """Returns what reaches a terminal on stdout and stderr."""
    real, fake = (sys.stdout, sys.stderr), (Terminal(), Terminal())
    sys.stdout, sys.stderr = fake
    try:
        with shown_streams():
            do()
    finally:
        sys.stdout, sys.stderr = real
    return "".join(f.getvalue() for f in fake)


def test_what_is_printed_or_laid_out_shows_its_control_characters():
    for do in (
        lambda: print(HOSTILE, HOSTILE, file=sys.stderr),
        lambda: sys.stdout.writelines([HOSTILE]),
        lambda: open_console(sys.stdout, 200).print(Text(HOSTILE), soft_wrap=True),
        lambda: show(open_console(sys.stderr, 200), ("id", "text"), [("q1", HOSTILE)], bold=0),
    ):
        said = printed(do)
        assert "all well" in said and "evil" in said and r"\u001b]0;owned" in said
        left = re.sub(r"\x1b\[[012]m", "", said)  # the table's own bold and dim
        assert left == shown(left)


def test_bars_and_colours_of_its_own_still_reach_the_terminal():
    def bar():
        with Progress(BarColumn(), console=open_console(sys.stderr, 40)) as bars:
            bars.add_task(HOSTILE, total=1)

    said = printed(bar)
    assert "\x1b[" in said and "owned" not in said
    assert printed(lambda: print("\x1b[36m(pid=3)\x1b[0m started")) == "(pid=3) started\n"  # Ray's


def test_json_means_the_same_and_errors_of_commands_are_shown(capsys):
    value = json.dumps({"id": HOSTILE}, ensure_ascii=False)
    assert json.loads(printed(lambda: print(value))) == {"id": HOSTILE}
    assert main(["check", f"no{HOSTILE}recipe"]) == 2
    out, err = capsys.readouterr()
    assert "all well" in err and shown(out + err) == out + err
