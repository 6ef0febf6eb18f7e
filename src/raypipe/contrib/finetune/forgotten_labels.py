"""Removal of forgotten texts from folders of training labels, by question ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raypipe.contrib.finetune.label_files import ABOUT, ROWS, Label, read_labels, write_labels
from raypipe.store.text_places import Gone


class LabelFolders:
    """Folders of labels (`evaluation.forgotten.TextFolders`)."""

    def find(self, places: Sequence[Path]) -> list[Path]:
        found = dict.fromkeys(f.parent for place in places for f in sorted(place.rglob(ABOUT)))
        return [f for f in found if (f / ROWS).is_file()]

    def held(self, folder: Path, gone: Gone) -> tuple[str, int]:
        labels = read_labels(folder)
        return labels.digest, sum(_shows(x, gone) for x in labels.labels)

    def take_out(self, folder: Path, gone: Gone) -> None:
        found = read_labels(folder)
        left = [x for x in found.labels if not _shows(x, gone)]
        if left:
            write_labels(folder, left, found.recipe, found.data, found.about, found.questions)
            return
        for name in (ABOUT, ROWS):
            (folder / name).unlink(missing_ok=True)


def _shows(label: Label, gone: Gone) -> bool:
    """Returns whether a label may show a removed text: an answer to its question rests on that text, or no
    stored answer is known to be safe. The second case does not apply to imported labels."""
    if label.question_id in gone.resting:
        return True
    known = any(label.question_id in ids for ids in gone.safe.values())
    return label.rule != "imported" and not known


FOLDERS = LabelFolders()
