"""Answers from a model that others compute: one process has as many blocks in hand as keep it busy."""

import io
import threading
import time

import pytest
from chat_server import serving
from checkout import ROOT

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Question
from raypipe.models.hosts import EndpointAddress
from raypipe.runs.cluster.cluster_file import Pool
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig
from raypipe.store import Store, put

QUESTIONS, PER_TASK, AT_ONCE = 40, 2, 8
REPLY_S, LONGEST_S = 0.2, 60.0


class Chats:
    """A server of one model, of which one chat takes until all others have ended."""

    def __init__(self):
        self.flying, self.most, self.ended = 0, 0, []
        self._lock, self._others = threading.Lock(), threading.Event()

    def __call__(self, request, body):
        text = body["messages"][-1]["content"]
        with self._lock:
            self.flying += 1
            self.most = max(self.most, self.flying)
        if "question 7?" in text:
            self._others.wait(LONGEST_S)
        else:
            time.sleep(REPLY_S)
        with self._lock:
            self.flying -= 1
            self.ended.append(text)
            if len(self.ended) == QUESTIONS - 1:
                self._others.set()
        request.reply("Ann Lee")


@pytest.mark.ray
@pytest.mark.drill
def test_one_long_reply_holds_back_no_other_row_and_their_seconds_add_up_to_those_of_the_process(
    local_ray, tmp_path
):
    from raypipe.runs.cluster.running import run

    store = Store.create(str(tmp_path / "store"))
    asked = [Question(f"q{n}", f"who answers question {n}?", citations=()) for n in range(QUESTIONS)]
    put(store, "questions", arrow.question.table(asked))
    chats, one = Chats(), Pool(1, 0.5)
    pools = {"parse": one, "embed": one, "answer": one}
    with serving(chats) as server:
        recipe = load_recipe("vanilla", None, Conf((ROOT / "conf",)), llm=f"{server.url}#m")
        places = {"llm": EndpointAddress(server.url, concurrency=AT_ONCE)}
        worker = WorkerConfig(store.uri, "transformers", "cpu", 1, endpoints=places)
        pipe = Pipeline(
            store,
            recipe,
            worker,
            TaskSizes(100, PER_TASK),
            lambda *of: run(*of[:3], lambda: pools),
            Progress(io.StringIO(), silent=True),
        )
        pipe.index(asked)
        start = time.monotonic()
        done = pipe.answer(asked)
        took = time.monotonic() - start
    assert [q.answer for q in pipe.answers(asked)] == ["Ann Lee"] * QUESTIONS
    assert chats.most == AT_ONCE, "a block alone has two"
    assert "question 7?" in chats.ended[-1], "all others were done meanwhile"
    spent = done.counts["generate:llm"].seconds
    assert REPLY_S * QUESTIONS / AT_ONCE <= spent < took, "blocks at the same time share the seconds"
