"""What was only tried with --set is no root: the last run of the file as it is stays one."""

from types import SimpleNamespace

from raypipe.runs.release import last_of_each


def run(name, file, *sets):
    return SimpleNamespace(run=name, recipe={"name": file, "file": file, "sets": list(sets)})


def test_the_last_run_of_a_file_is_a_root_and_one_with_set_only_where_there_is_no_other():
    latest_first = [
        run("5", "b", "rerank.top=9"),
        run("4", "a", "rerank.top=5"),
        run("3", "a"),
        run("2", "b", "x.y=1"),
        run("1", "a"),
    ]
    assert {r.run for r in last_of_each(latest_first)} == {"3", "5"}
