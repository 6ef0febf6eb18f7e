"""labels.parquet and labels.json: what is written is read, and nothing else is."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raypipe.contrib.finetune.label_files import Label, counts, labels_digest, read_labels, write_labels
from raypipe.core.errors import DataError
from raypipe.core.llm import Message

CHAT = (Message("system", "Answer."), Message("user", "<DOC>\nx\n</DOC>\nQuestion: who \u201csang\u201d?"))
LABELS = (
    Label("q1", CHAT, "mira tolland", "3.1", "music", "train", "mira tolland"),
    Label("q2", CHAT, "i don't know", "3.2.1", None, "held-out", "1911"),
    Label("q3", CHAT, "invalid question", "1", "music", "train", "invalid question"),
)


def test_labels_are_read_as_they_were_written(tmp_path):
    named = write_labels(tmp_path, LABELS, "r1", "d1", {"step": "web"})
    found = read_labels(tmp_path)
    assert (found.labels, found.digest, found.recipe, found.data) == (LABELS, named, "r1", "d1")
    assert found.about == {"step": "web"} and found.questions == {}
    about = json.loads((tmp_path / "labels.json").read_text())
    assert about["format"] == 1 and about["counts"]["rule"] == {"1": 1, "3.1": 1, "3.2.1": 1}
    assert counts(LABELS)["domain"] == {"": 1, "music": 2}
    write_labels(tmp_path, LABELS[:2], "r1", "d1", questions={"q1": "0a", "q2": "0b", "q9": "0c"})
    assert read_labels(tmp_path).questions == {"q1": "0a", "q2": "0b"}


def test_the_digest_names_content_and_order():
    assert labels_digest(LABELS) == labels_digest(tuple(LABELS))
    assert labels_digest(LABELS) != labels_digest(LABELS[::-1])
    assert labels_digest(LABELS) != labels_digest((*LABELS[:2], replace(LABELS[2], split="held-out")))


def test_an_edited_table_is_refused(tmp_path):
    write_labels(tmp_path, LABELS, "r1", "d1")
    table = pq.read_table(tmp_path / "labels.parquet")
    pq.write_table(table.slice(0, 2), tmp_path / "labels.parquet")
    with pytest.raises(DataError, match="is not the table that"):
        read_labels(tmp_path)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((), "expected labels, found none"),
        ((LABELS[0], LABELS[0]), "one label for each question, found 2 of q1"),
        ((replace(LABELS[0], label=" "),), "a label that says something"),
    ],
)
def test_labels_that_cannot_be_used_are_not_written(tmp_path, labels, said):
    with pytest.raises(DataError, match=said):
        write_labels(tmp_path, labels, "r1", "d1")
    assert not list(tmp_path.iterdir())


def test_a_table_of_another_form_is_refused(tmp_path):
    with pytest.raises(DataError, match="expected a folder of labels"):
        read_labels(tmp_path)
    write_labels(tmp_path, LABELS, "r1", "d1")
    table = pq.read_table(tmp_path / "labels.parquet")
    for odd, said in [
        (table.drop_columns(["gold"]), "found KeyError: .*gold.* does not exist"),
        (table.set_column(5, "split", [["train", "test", "train"]]), "is not the table that"),
        (table.slice(0, 0), "is not the table that"),
        (
            table.set_column(1, "messages", pa.array([[None]] * 3, table.schema.field("messages").type)),
            "found TypeError",
        ),
    ]:
        pq.write_table(odd, tmp_path / "labels.parquet")
        with pytest.raises(DataError, match=said):
            read_labels(tmp_path)
    (tmp_path / "labels.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"labels.parquet, as .* found ArrowInvalid"):
        read_labels(tmp_path)
    for odd in ("no json", "[]", '{"format": 2}'):
        (tmp_path / "labels.json").write_text(odd)
        with pytest.raises(DataError, match=r"expected labels.json of format 1"):
            read_labels(tmp_path)
