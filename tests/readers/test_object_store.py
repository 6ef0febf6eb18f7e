"""Data, store and outputs on an object store: S3 as moto plays it, on a port of this machine."""

from __future__ import annotations

import errno
import io
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from buckets import bucket_of
from collection_bench import RANKS, papers, queries, write_beir
from reruns import SIZES, Bench

from raypipe.api.cli.main import main
from raypipe.contrib.world.write import write
from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.result_table import each
from raypipe.evaluation.view.run_list import RemoteRuns, RunList
from raypipe.evaluation.view.viewer import Viewer
from raypipe.readers.object_store import TRIES, copy_with_retries, download, upload
from raypipe.runs.captured_answers import answer_ids
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.recipe_tables import postings_tables
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.record import read
from raypipe.runs.release import live, promote
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store, StoreError
from raypipe.store.errors import StoreUnavailable
from raypipe.store.files import Files
from raypipe.store.lease import claim, claimed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bucket():
    with bucket_of("raypipe-bucket") as made:
        yield made


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two invented questions, and a folder to answer them in."""
    folder = tmp_path_factory.mktemp("small")
    write(folder / "world", 2, pages=2, seed=3, page_chars=1000)
    return Bench(folder, folder / "world")


@pytest.fixture(scope="module")
def filled(bucket, small, tmp_path_factory):
    """They are answered over a store in the bucket, in this process."""
    folder, here = tmp_path_factory.mktemp("remote"), small.pipeline()
    store = Store.create(f"{bucket.uri}/stores/one")
    silent = Progress(io.StringIO(), silent=True)
    pipeline = Pipeline(
        store, here.recipe, WorkerConfig(store.uri, "transformers", "cpu", 1), SIZES, inline, silent
    )
    upload(small.world, f"{bucket.uri}/data")
    data = download(f"{bucket.uri}/data", folder / "cache")
    return pipeline, data, evaluate(pipeline, [data], folder / "out", EvalOptions("crag", rule="official"))


@pytest.mark.drill
def test_a_run_over_a_bucket_gives_what_a_run_over_a_folder_gives(filled, small):
    _, _, done = filled
    small.run(out="here")
    assert done.folder.predictions.read_text() == (small.folder / "here/predictions.jsonl").read_text()


def test_two_gateways_that_start_at_once_sign_with_one_secret(bucket):
    first = Store.create(f"{bucket.uri}/stores/captures")
    with ThreadPoolExecutor(8) as gateways:
        ids = list(gateways.map(lambda _: answer_ids(Store.open(first.uri)), range(8)))
    drawn = ids[0].draw(1.0, "key")
    assert [i.given_at(drawn, "key") for i in (*ids, answer_ids(first))] == [1.0] * 9


def test_of_all_that_claim_a_file_at_once_one_makes_it(bucket):
    """Lance lets several creations of one table commit, the later ones as its second version."""
    with ThreadPoolExecutor(4) as processes:
        for n in range(3):
            start = threading.Barrier(4)

            def claims(number, n=n, start=start):
                start.wait()
                return claim(Files(f"{bucket.uri}/claims"), f"sign-{n}", b"%d" % number)

            won = [number for number, made in enumerate(processes.map(claims, range(4))) if made]
            assert [b"%d" % number for number in won] == [claimed(Files(f"{bucket.uri}/claims"), f"sign-{n}")]


@pytest.mark.drill
def test_nothing_is_asked_again_and_a_release_can_be_set_there(filled, tmp_path):
    pipeline, data, first = filled
    again = evaluate(pipeline, [data], tmp_path / "again", EvalOptions("crag", rule="official"))
    assert again.reused == first.record.questions
    assert sum(s.computed for s in again.record.steps) == 0
    assert live(pipeline.store) is None
    promote(pipeline.store, again.record, [])
    assert live(Store.open(pipeline.store.uri)).run == again.record.run


@pytest.mark.drill
def test_a_collection_in_a_bucket_is_ranked_by_its_postings_as_one_in_a_folder(bucket, tmp_path):
    beir = write_beir(tmp_path / "beir", papers(1, 60), queries(4))
    here, store = Bench(tmp_path, tmp_path).pipeline(RANKS), Store.create(f"{bucket.uri}/stores/papers")
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    there = Pipeline(store, here.recipe, worker, SIZES, inline, Progress(io.StringIO(), silent=True))
    ranked = []
    for name, pipe in (("folder", here), ("bucket", there)):
        done = evaluate(pipe, [beir], tmp_path / name, EvalOptions("beir"))
        [(postings, lengths)] = postings_tables(pipe.recipe).values()
        assert pipe.store.count(postings) and pipe.store.count(lengths)
        ranked.append(done.folder.predictions.read_text())
    assert ranked[0] == ranked[1] and "bm25" in ranked[0]


@pytest.mark.drill
def test_a_second_driver_is_kept_out_of_a_bucket_as_of_a_folder(filled):
    uri = filled[0].store.uri
    second = Store.open(uri).lease("driver", "second")
    with Store.open(uri).lease("driver", "first"), pytest.raises(StoreError, match="first"), second:
        pass
    with Store.open(uri).lease("driver", "third"):
        pass


def test_what_is_fetched_once_is_fetched_again_only_when_it_changed(bucket, tmp_path):
    def put(text):
        bucket.client.put_object(Bucket=bucket.name, Key="some/a.txt", Body=text.encode())

    put("one")
    got = download(f"{bucket.uri}/some/a.txt", tmp_path)
    assert got.read_text() == "one" and got.name == "a.txt"
    got.write_text("ONE")
    assert download(f"{bucket.uri}/some/a.txt", tmp_path).read_text() == "ONE"
    put("another")
    bucket.client.put_object(Bucket=bucket.name, Key="some/b.txt", Body=b"gone soon")
    assert (download(f"{bucket.uri}/some", tmp_path) / "b.txt").exists()
    bucket.client.delete_object(Bucket=bucket.name, Key="some/b.txt")
    assert download(f"{bucket.uri}/some/a.txt", tmp_path).read_text() == "another"
    folder = download(f"{bucket.uri}/some", tmp_path)
    assert (folder / "a.txt").read_text() == "another" and not (folder / "b.txt").exists()


def test_a_single_object_is_chosen_by_its_name(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    uri = (tmp_path / "run.json").as_uri()
    assert download(uri, tmp_path / "one", lambda name: name == "run.json").read_text() == "{}"
    assert not download(uri, tmp_path / "two", lambda name: name == "sweep.json").exists()


def test_a_folder_is_sent_whole_and_its_record_last(bucket, tmp_path):
    for name in ("a.txt", "run.json", "z/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    upload(tmp_path, f"{bucket.uri}/runs/x", last=["run.json"])
    found = [k.removeprefix("runs/x/") for k in bucket.keys("runs/x")]
    assert found == ["a.txt", "run.json", "z/b.txt"]
    there = tmp_path.parent / f"{tmp_path.name}-there"
    upload(tmp_path, there.as_uri(), last=["run.json"])  # a clock that is finer than S3's
    times = {p.name: p.stat().st_mtime_ns for p in there.rglob("*") if p.is_file()}
    assert max(times, key=times.get) == "run.json" and len(times) == 3


def test_a_folder_that_is_sent_over_another_is_not_whole_until_all_of_it_is_there(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for name in ("a.txt", "run.json", "z.txt"):
        here.mkdir(exist_ok=True)
        (here / name).write_text("one")
    upload(here, there.as_uri(), last=["run.json"])
    (there / "z.txt").unlink()
    (there / "z.txt").mkdir()  # it breaks off there
    with pytest.raises(DataError, match="cannot be written"):
        upload(here, there.as_uri(), last=["run.json"])
    assert not (there / "run.json").exists()
    (there / "z.txt").rmdir()
    upload(here, there.as_uri(), last=["run.json"])
    assert (there / "run.json").read_text() == "one"


def test_what_is_not_there_is_said_with_its_address(bucket, tmp_path):
    with pytest.raises(DataError, match=rf"{bucket.uri}/nothing: nothing is there"):
        download(f"{bucket.uri}/nothing", tmp_path)
    with pytest.raises(DataError, match="nothing is there"):
        download("s3://no-such-bucket-here/x", tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        download("nosuch://x/y", tmp_path)


def test_commands_take_addresses_for_what_they_read(bucket, small, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path))
    data, store = f"{bucket.uri}/read", f"{bucket.uri}/stores/two"
    upload(small.world, data)
    for again in (False, True):
        assert main(["ingest", data, "--format", "synth", "--store", store, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["questions"], said["again"]) == (2, again)
    assert main(["ingest", f"{bucket.uri}/none", "--store", store]) == 3


def test_runs_of_a_bucket_are_listed_by_their_manifests_and_copied_when_they_are_opened(
    bucket, ran, tmp_path
):
    folder, store = RunFolder(ran.folder / "out"), Store.open(str(ran.folder / "store"))
    run = read(folder.path).run
    upload(folder.path, f"{bucket.uri}/runs/deep/one", last=["run.json"])
    upload(folder.path, f"{bucket.uri}/runs/other")  # the same run twice: the first counts
    runs = RunList([RemoteRuns(f"{bucket.uri}/runs", tmp_path)], store)

    def copied():
        return {p.name for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".fetched"}

    assert runs.given() == [run] and copied() == {"run.json"}
    viewer, link = Viewer(runs, None), f'href="/run/{run}/"'.encode()
    assert link in viewer.get("/").body
    page = viewer.get(f"/run/{run}/").body.decode()
    assert all(row["id"] in page for row in each(folder.results))
    assert json.loads(viewer.get(f"/run/{run}/question/0").body)
    assert len([p for p in tmp_path.rglob("results.parquet")]) == 1  # of the run that is opened alone
    known = Viewer(RunList([], store), None).get("/").body
    assert b"folder not here" in known and link not in known
    with pytest.raises(DataError, match="nothing is there"):
        RunList([RemoteRuns(f"{bucket.uri}/no-runs", tmp_path)], None)


def failing(times, error):
    """A copy that fails so often first, and the count of its calls."""
    calls = []

    def copy():
        calls.append(1)
        if len(calls) <= times:
            raise error

    return copy, calls


def test_an_object_whose_transfer_breaks_off_is_copied_again():
    copy, calls = failing(2, OSError("AWS Error NETWORK_CONNECTION"))
    pauses = []
    copy_with_retries(copy, pauses.append)
    assert len(calls) == 3 and len(pauses) == 2


def test_a_store_that_stays_down_ends_the_copy_after_a_few_tries():
    copy, calls = failing(99, OSError("AWS Error NETWORK_CONNECTION"))
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        copy_with_retries(copy, lambda seconds: None)
    assert len(calls) == TRIES


def test_a_full_disk_ends_the_copy_at_once():
    copy, calls = failing(99, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        copy_with_retries(copy, lambda seconds: None)
    assert len(calls) == 1


def test_an_endpoint_of_http_needs_no_other_setting_and_a_missing_bucket_is_said(bucket, monkeypatch):
    for variable in ("AWS_ENDPOINT", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(variable)
    assert Store.create(f"{bucket.uri}/stores/plain").has("sources")
    with pytest.raises(StoreError, match=r"at s3://no-such-bucket/x: its bucket does not exist") as missing:
        Store.create("s3://no-such-bucket/x")
    assert missing.value.exit_code == 2


def test_a_store_that_no_network_reaches_is_unavailable_with_what_to_set(monkeypatch):
    for variable in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(StoreUnavailable, match=r"resolving region.*Set AWS_REGION") as unreached:
        Store.find("s3://some-bucket/x")
    assert unreached.value.exit_code == 69


def test_each_command_takes_the_address_of_a_run(bucket, ran, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    here, there = ran.folder / "out", f"{bucket.uri}/runs/finished"
    upload(here, there, last=["run.json"])
    [row, *_] = each(RunFolder(here).results)

    def prints(*words, code=0):
        assert main([*map(str, words)]) == code
        return "".join(capsys.readouterr())

    assert f"run {read(here).run[:8]}" in prints("inspect", there)
    for run in (("inspect", there, row["id"]), ("inspect", there, "--losses")):
        assert prints(*run) == prints(*(here if w == there else w for w in run))
    assert there in prints("compare", here, there, "--measure", "f1") and "fetched" not in prints(
        "compare", there, here, "--rule", "accuracy"
    )
    assert prints("score", "crag", there) == prints("score", "crag", here)
    assert prints("score", "qa", there) == prints("score", "qa", here)
    prints("inspect", there, "--faults")
    prints("export", there, "--as", "predictions", "--out", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == RunFolder(here).predictions.read_text()
    assert "name the file to write" in prints("fit", "decide", there, code=2).lower()
    store = tmp_path / "store"
    shutil.copytree(ran.folder / "store", store)
    assert "live in" in prints("promote", there, "--store", store)
    assert prints("promote", there, "--store", store, "--gate", "better", "--against", there, code=7)
    bucket.client.delete_object(Bucket=bucket.name, Key="runs/finished/run.json")
    assert f"{there}: expected the --out of a finished eval" in prints("inspect", there, code=3)
    assert "nothing is there" in prints("compare", here, f"{bucket.uri}/none", code=3)
