"""What is forgotten, taken out of folders of training labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from raypipe.contrib.finetune.label_files import ABOUT, ROWS, Label, read_labels, write_labels
from raypipe.runs.forget.records import ForgetDecision


class LabelFolders:
    """Folders of labels (`evaluation.forgotten.TextFolders`)."""

    def find(self, places: Sequence[Path]) -> list[Path]:
        found = dict.fromkeys(f.parent for place in places for f in sorted(place.rglob(ABOUT)))
        return [f for f in found if (f / ROWS).is_file()]

    def held(self, folder: Path, decision: ForgetDecision) -> tuple[str, int]:
        labels = read_labels(folder)
        return labels.digest, sum(_holds(x, decision) for x in labels.labels)

    def take_out(self, folder: Path, decision: ForgetDecision) -> None:
        found = read_labels(folder)
        left = [x for x in found.labels if not _holds(x, decision)]
        if len(left) == len(found.labels):
            return
        if left:
            write_labels(folder, left, found.recipe, found.data, found.about, found.questions)
            return
        for name in (ABOUT, ROWS):
            (folder / name).unlink(missing_ok=True)


def _holds(label: Label, decision: ForgetDecision) -> bool:
    told = decision.mentions
    if label.question_id in decision.target.questions:
        return True
    return told.within([asdict(m) for m in label.messages]) or told(label.label) or told(label.gold or "")


FOLDERS = LabelFolders()
