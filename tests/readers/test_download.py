"""Downloads against a server on loopback that supports ranges, breaks off, lies, and is busy."""

import hashlib
import io
import random
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from raypipe.api.cli.main import main
from raypipe.core.errors import ConfError, DataError
from raypipe.readers import download
from raypipe.readers.download import RemoteFile

CUT = 15 * download.BLOCK
CONTENT = random.Random(1).randbytes(3_000_000)
GOOD = RemoteFile("data.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class Server(ThreadingHTTPServer):
    """Serves CONTENT under any path; `moods` says how each request in turn is answered, then all go well."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.moods: list[str] = []
        self.asked: list[tuple[str, str]] = []  # path, range
        self.content = CONTENT

    def handle_error(self, *_: object) -> None:
        pass  # a client that hangs up before the last byte is expected here

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/data/"


class Answer(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.server.asked.append((self.path, asked))
        mood = self.server.moods.pop(0) if self.server.moods else "well"
        if mood.isdigit():
            return self.answer(int(mood), {}, b"")
        if mood.startswith("http") or mood.startswith("/"):
            return self.answer(302, {"Location": mood}, b"")
        if mood == "page":
            return self.answer(
                200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>Please log in</html>"
            )
        content = self.server.content
        start = 0 if mood == "ignores range" else int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            return self.answer(416, {}, b"")
        said = start + 1 if mood == "wrong range" else start
        span = {"Content-Range": f"bytes {said}-{len(content) - 1}/{len(content)}"}
        whole = mood == "ignores range"
        cut = CUT if mood == "breaks off" else None
        self.answer(200 if whole else 206, {} if whole else span, content[start:], cut)

    def answer(self, status: int, headers: dict[str, str], body: bytes, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as it:
        thread = threading.Thread(target=it.serve_forever, args=(0.01,))
        thread.start()
        yield it
        it.shutdown()
        thread.join()


class Told:
    """Remembers what it was told of progress, and how long it was asked to wait."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.pauses: list[float] = []

    def progress(self, name: str, done: int, size: int) -> None:
        assert 0 <= done <= size
        self.bytes.append(done)


def fetch(
    server: Server, folder: Path, file: RemoteFile = GOOD, told: Told | None = None, **more
) -> list[Path]:
    told = told or Told()
    return download.fetch(
        [file], folder, server.url, told.progress, pause=told.pauses.append, jitter=lambda: 0.5, **more
    )


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_file_arrives_whole_and_is_not_asked_for_again(server, tmp_path):
    told = Told()
    (path,) = fetch(server, tmp_path / "new", told=told)
    assert path.read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["data.bin"]
    assert told.bytes[0] == 0 and told.bytes[-1] == len(CONTENT) and told.bytes == sorted(told.bytes)
    fetch(server, tmp_path / "new")
    assert server.asked == [("/data/data.bin", "bytes=0-")]


def test_a_broken_transfer_goes_on_where_it_broke_off(server, tmp_path):
    server.moods = ["breaks off", "503", "breaks off"]
    told = Told()
    (path,) = fetch(server, tmp_path, told=told)
    assert path.read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [f"bytes={n}-" for n in (0, CUT, CUT, 2 * CUT)]
    assert told.pauses == [1, 2, 1]


def test_an_earlier_run_is_continued(server, tmp_path):
    (tmp_path / "data.bin.partial").write_bytes(CONTENT[:2_999_999])
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [("/data/data.bin", "bytes=2999999-")]


def test_a_partial_that_is_whole_is_only_checked(server, tmp_path):
    (tmp_path / "data.bin.partial").write_bytes(CONTENT)
    fetch(server, tmp_path)
    assert (names(tmp_path), server.asked) == (["data.bin"], [])


def test_a_server_that_knows_no_ranges_starts_over(server, tmp_path):
    (tmp_path / "data.bin.partial").write_bytes(b"x" * 10)
    server.moods = ["ignores range"]
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_dead_server_is_given_up_and_what_came_is_kept(server, tmp_path):
    server.moods = ["breaks off"] + ["503"] * 20
    told = Told()
    with pytest.raises(DataError, match="983,040 of 3,000,000 bytes are here; run it again"):
        fetch(server, tmp_path, told=told)
    assert told.pauses == [1, 2, 4, 8, 16]
    assert (tmp_path / "data.bin.partial").read_bytes() == CONTENT[:CUT]


def test_no_server_at_all_is_a_clear_error(server, tmp_path):
    url = server.url
    server.server_close()
    with pytest.raises(DataError, match="failed 6 times in a row"):
        download.fetch([GOOD], tmp_path, url, Told().progress, pause=lambda s: None)


def test_other_content_keeps_nothing_and_says_so(server, tmp_path):
    server.content = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match=f"expected sha256 {GOOD.sha256}, received .* Nothing was kept"):
        fetch(server, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "content", [CONTENT + b"x", CONTENT[:-1], b"version https://git-lfs.github.com/spec/v1"]
)
def test_another_size_is_refused_before_it_is_fetched(server, tmp_path, content):
    server.content = content
    with pytest.raises(
        DataError, match=f"expected 3,000,000 bytes as published, the server says {len(content):,}"
    ):
        fetch(server, tmp_path)
    assert names(tmp_path) == ["data.bin.partial"]
    assert (tmp_path / "data.bin.partial").stat().st_size == 0


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("page", "found a web page"),
        ("404", "found status 404 Not Found"),
        ("403", "found status 403"),
        ("wrong range", "expected bytes from 0 on, received 'bytes 1-"),
    ],
)
def test_an_answer_that_is_not_the_file_is_said_at_once(server, tmp_path, mood, message):
    server.moods = [mood]
    with pytest.raises(DataError, match=message):
        fetch(server, tmp_path)
    assert len(server.asked) == 1


def test_redirects_on_the_same_host_are_followed(server, tmp_path):
    server.moods = ["/media/data.bin", server.url + "third.bin"]
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert [p for p, _ in server.asked] == ["/data/data.bin", "/media/data.bin", "/data/third.bin"]


def test_no_other_host_is_asked_unless_it_is_named(server, tmp_path):
    elsewhere = server.url.replace("127.0.0.1", "localhost") + "data.bin"
    server.moods = [elsewhere]
    with pytest.raises(DataError, match=r"localhost.* only 127\.0\.0\.1 may serve"):
        fetch(server, tmp_path)
    assert len(server.asked) == 1
    server.moods = [elsewhere]
    fetch(server, tmp_path, hosts=("127.0.0.1", "localhost"))


def test_redirects_in_a_circle_end(server, tmp_path):
    server.moods = ["/data/data.bin"] * 20
    with pytest.raises(DataError, match="more than 5 redirects"):
        fetch(server, tmp_path)


def test_something_else_under_the_name_is_left_alone(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match="expected the published content, found another"):
        fetch(server, tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == b"mine"
    assert server.asked == []


def test_a_disk_too_small_is_said_before_anything_is_asked(server, tmp_path):
    huge = RemoteFile("huge.bin", 1 << 60, "0" * 64)
    with pytest.raises(
        DataError, match=r"1,152,921,504,606,846,976 bytes are missing, but only [\d,]+ are free"
    ):
        fetch(server, tmp_path, huge)
    assert server.asked == []


def test_the_crag_archives_are_named_sized_and_digested():
    sizes = {key: sum(f.size for f in files) for key, files in download.CRAG.items()}
    assert sizes == {
        ("1", "v4"): 739_384_484,
        ("1", "v5"): 739_310_088,
        ("3", "v4"): 3 * 2_097_152_000 + 1_432_877_269,
        ("3", "v5"): 3 * (2 << 30) + 1_283_117_287,
    }
    every = [f for files in download.CRAG.values() for f in files]
    assert len({f.sha256 for f in every}) == len({f.name for f in every}) == 10
    assert {len(bytes.fromhex(f.sha256)) for f in every} == {32}
    assert [f.name[-1] for f in download.CRAG["3", "v4"]] == list("1234")
    assert [f.name[-1] for f in download.CRAG["3", "v5"]] == list("0123")


def test_an_unknown_task_is_a_clear_error(tmp_path):
    with pytest.raises(ConfError, match="no task 2 v4: expected one of task 1 v4"):
        download.crag("2", tmp_path, Told().progress)  # type: ignore[arg-type]


def test_of_an_archive_only_the_named_files_are_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "a.tgz"
    with tarfile.open(archive, "w:gz") as made:
        for name in ("data/train.json", "../outside.txt", "README.md"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            made.addfile(member, io.BytesIO(name.encode()))
    assert download.unpack([archive], ["train.json"], tmp_path) == [tmp_path / "train.json"]
    assert (tmp_path / "train.json").read_text() == "data/train.json"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tgz", "train.json"]
    with pytest.raises(DataError, match=r"expected dev\.json in the archives"):
        download.unpack([archive], ["dev.json"], tmp_path)


def test_the_options_of_one_dataset_are_refused_with_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["qasper", "--task", "1"], ["crag"]):
        assert main(["download", *command, str(tmp_path)]) == 2
        assert "--task" in capsys.readouterr().err
