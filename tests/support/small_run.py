"""A record of a run with as few fields as a test names."""

from raypipe.runs.record import Origin, Run


def small_run(**fields):
    """A run of recipe `local` over nothing; `fields` replace its own."""
    own = {
        "run": "r1",
        "store": "/s",
        "started": 0.0,
        "finished": 1.0,
        "digest": "abc",
        "stages": (),
        "recipe": {"name": "local", "corpus": [], "question": []},
        "models": (),
        "backend": "transformers",
        "device": "cpu",
        "origin": Origin(),
        "questions": 0,
        "snapshot": "",
        "tables": {},
        "memo": {},
        "steps": (),
        "faults": (),
        "kind": "crag",
    }
    return Run(**{**own, **fields})
