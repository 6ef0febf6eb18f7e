"""One public name, one meaning: no class name in two packages, except a contract and its implementation."""

import ast
from collections import defaultdict

from checkout import SRC


def is_contract(node):
    """Whether a class is a protocol."""
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def test_no_class_name_stands_in_two_packages():
    found = defaultdict(list)
    for file in sorted(SRC.rglob("*.py")):
        module = file.relative_to(SRC)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append((module.parts[0], str(module), is_contract(node)))
    twice = {
        name: [module for _, module, _ in classes]
        for name, classes in found.items()
        if len({package for package, *_ in classes}) > 1
        and not (len(classes) == 2 and sum(contract for *_, contract in classes) == 1)
    }
    assert not twice
    assert len(found) > 200, "the classes were read"
