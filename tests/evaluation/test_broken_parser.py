"""A change of the recipe that breaks parsing: the funnel of losses says so, in the report and on its page."""

import pytest
from lxml import html
from reruns import FAKES, Bench

from raypipe.contrib.world.write import write
from raypipe.evaluation.evaluate import Evaluation, evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.metrics.losses import Loss


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evaluation]:
    """Two runs: one that parses pages, and one whose recipe was changed so that it does not."""
    home = tmp_path_factory.mktemp("parsed")
    write(home / "world", 10, pages=3, seed=9, page_chars=1000)
    bench = Bench(home, home / "world")
    sure = FAKES.replace("threshold: 0.5", "threshold: 0.0")
    broken = sure.replace("kinds: [page, snippet, document]", "kinds: [name]")
    return {
        name: evaluate(bench.pipeline(text), data, home / name, EvalOptions("crag", kind="qa"))
        for name, text, data in (("fine", sure, [bench.world]), ("broken", broken, []))
    }


@pytest.mark.drill
@pytest.mark.slow
def test_a_parser_that_loses_pages_is_the_largest_loss(parsed: dict[str, Evaluation]) -> None:
    done = [run.record.losses for run in parsed.values()]
    assert all(x is not None and sum(p.questions for p in x.places) == x.misses for x in done)
    before, after = ({p.loss: p.questions for p in x.places} for x in done if x is not None)
    assert max(after, key=lambda x: after[x]) == Loss.PARSING and before[Loss.PARSING] == 0


@pytest.mark.slow
def test_the_page_says_so_too(parsed: dict[str, Evaluation]) -> None:
    page = html.fromstring(parsed["broken"].folder.page.read_text())
    [table] = [table for table in page.iter("table") if "the gold is" in table.text_content()]
    rows = [
        [cell.text_content().strip() for cell in row.iter("th", "td")] for row in table.iterfind("tbody/tr")
    ]
    counts = {name: int(n) for name, n, *_ in rows if n.isdecimal()}
    assert max(counts, key=lambda x: counts[x]) == "parsing"
