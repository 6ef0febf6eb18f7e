"""`core.protocols`: a kit that forwards every call."""

import inspect

import pytest

from raypipe.core.protocols import ForwardingKit, Kit

CALLS = [name for name, _ in inspect.getmembers(Kit, inspect.isfunction) if not name.startswith("_")]


class Echo:
    """Every call returns its own name and what it was called with."""

    def __getattr__(self, name):
        return lambda *given: (name, given)


@pytest.mark.parametrize("name", CALLS)
def test_a_forwarding_kit_forwards_each_call_of_a_kit(name):
    given = tuple(inspect.signature(getattr(Kit, name)).parameters)[1:]
    assert getattr(ForwardingKit(Echo()), name)(*given) == (name, given)


def test_a_wrapper_changes_what_it_overrides_and_nothing_else():
    class Wrapper(ForwardingKit):
        def index(self):
            return "another index"

    kit = Wrapper(Echo())
    assert kit.index() == "another index" and kit.tokenizer("m") == ("tokenizer", ("m",))
