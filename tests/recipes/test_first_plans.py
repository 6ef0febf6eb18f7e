"""Every recipe's first plan against its run, on data that no run has seen (the table of docs/costs.md)."""

import first_plans
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    with first_plans.data(tmp_path_factory.mktemp("data")) as made:
        yield made


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "local" else pytest.mark.drill) for n in first_plans.RECIPES]
)
def test_a_first_plan_expects_a_third_to_three_times_what_is_asked_and_at_most_twenty_times(
    name, where, tmp_path
):
    row = first_plans.first(name, where, tmp_path)
    low, high = row.expected
    assert row.made / 3 <= low <= high <= 3 * row.made, row
    assert row.made <= row.most <= 20 * row.made, row
