"""The pairs of a trial, and what is right about their questions. Reads the store; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

from raypipe.core import arrow
from raypipe.metrics.crag import Prediction
from raypipe.metrics.kinds.qa import answer_values
from raypipe.runs.captured import feedback_since
from raypipe.runs.trials import Pair, ReleaseTrial, TrialAnswer, pairs_of
from raypipe.store import Store
from raypipe.store.layout import TRIAL_PAIRS
from raypipe.store.segments import segment_names


class TrialEvidence:
    """The pairs of a trial and what is right about their questions; reads what came since it read last."""

    def __init__(self, store: Store, trial: ReleaseTrial) -> None:
        self.trial = trial
        self.pairs: list[Pair] = []
        self.first: dict[str, Pair] = {}  # question id -> its first pair
        self._store = store
        self._seen: set[str] = set()  # segments
        self._golds: dict[str, tuple[str, ...]] = {}  # question id -> stored ones

    def read(self) -> dict[str, tuple[str, ...]]:
        """Reads on, and returns question id -> what is right: the stored golds, and what users said."""
        names = segment_names(self._store.files, TRIAL_PAIRS, self.trial.started)
        came = list(pairs_of(self._store, self.trial, [n for n in names if n not in self._seen]))
        self._seen.update(names)
        self.pairs += came
        fresh = sorted({p.question for p in came} - self.first.keys())
        for pair in came:
            self.first.setdefault(pair.question, pair)
        golds = arrow.gold.records(self._store.rows("golds", "question", fresh))
        self._golds |= {g.question: g.answers for g in golds if g.answers}
        found = dict(self._golds)
        said = feedback_since(self._store, self.trial.started)
        for pair in self.pairs if said else ():
            texts = [f.text for f in said.get(pair.answer_id or "", ()) if f.text is not None]
            if texts:
                found[pair.question] = tuple(dict.fromkeys((*found.get(pair.question, ()), *texts)))
        return found


def side_values(side: TrialAnswer, truths: tuple[str, ...]) -> Mapping[str, float]:
    """The measures of an answer (`metrics.kinds.qa`). One that failed shares no word with what is right."""
    return answer_values(Prediction("", "" if side.outcome == "fault" else side.answer, truths))
