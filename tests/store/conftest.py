"""A small store."""

import pytest
from storerows import DIGEST, DIM

from raypipe.store import PASSAGES, Store, vectors_schema


@pytest.fixture
def store(tmp_path):
    return Store.create(str(tmp_path / "store"))


@pytest.fixture
def passages(store):
    table = f"passages-{DIGEST}"
    store.ensure(table, PASSAGES)
    return table


@pytest.fixture
def vectors(store):
    table = f"vectors-{DIGEST}"
    store.ensure(table, vectors_schema(DIM))
    return table
