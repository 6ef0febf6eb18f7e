"""What is checked of every Serve config, wherever it stands."""

import importlib.util
import typing

from checkout import ROOT
from pydantic import BaseModel


def builder():
    """What `serve.app:build` names, from the checkout."""
    spec = importlib.util.spec_from_file_location("serve_app", ROOT / "serve" / "app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build


def unknown(schema, tree, path=""):
    """The keys that a schema does not have. Serve itself ignores such keys in some places."""
    for key, value in tree.items():
        if key not in schema.model_fields:
            yield f"{path}{key}"
            continue
        inner = [x for x in _types(schema.model_fields[key].annotation) if _is_model(x)]
        for item in value if isinstance(value, list) else [value]:
            if inner and isinstance(item, dict):
                yield from unknown(inner[0], item, f"{path}{key}.")


def _types(hint):
    yield hint
    for inner in typing.get_args(hint):
        yield from _types(inner)


def _is_model(hint):
    return isinstance(hint, type) and issubclass(hint, BaseModel)
