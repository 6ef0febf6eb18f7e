"""Downloads of official files over HTTP, resumable and checked against published sizes and digests.

Holds the addresses, sizes and sha256 of the archives of CRAG and QASPER, and the names of QASPER's files. A
download is named NAME.partial until its digest is verified. Only listed hosts are contacted; if none is
listed, only the host of the base address.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urljoin

import httpx

from raypipe.core.backoff import RETRY_STATUSES, Backoff, retry_after_s
from raypipe.core.connections import open_client
from raypipe.core.errors import ConfError, DataError

BLOCK = 1 << 16  # bytes of a write; if the connection breaks, an unfinished block is lost
ATTEMPTS = 6  # attempts in a row that receive nothing, after which a download fails
REDIRECTS = 5
HEADERS = {"Accept-Encoding": "identity"}
"""Headers of each request: no compression, which would change bytes and length."""
TIMEOUT = httpx.Timeout(60.0, connect=10.0)  # seconds, for each read and write

Progress: TypeAlias = Callable[[str, int, int], None]
"""Function of (file name, bytes received, size of the file), called as the file grows."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str  # below the base address
    size: int  # bytes
    sha256: str


CRAG_BASE = "https://github.com/facebookresearch/CRAG/raw/refs/heads/main/data/"
CRAG_HOSTS = ("github.com", "media.githubusercontent.com")  # the first redirects to the host of Git LFS
QASPER_BASE = "https://qasper-dataset.s3.us-west-2.amazonaws.com/"


def _files(table: str) -> tuple[RemoteFile, ...]:
    """Parses lines that hold name, size in bytes and sha256."""
    rows = (line.split() for line in table.split("\n") if line.strip())
    return tuple(RemoteFile(name, int(size), sha256) for name, size, sha256 in rows)


CRAG: dict[tuple[str, str], tuple[RemoteFile, ...]] = {
    ("1", "v4"): _files("""
crag_task_1_and_2_dev_v4.jsonl.bz2 739384484 afa29f2b3facfb5d15aa9cded00d5ec90ff76f3e67279e7b99cfe86659a641ca
"""),
    ("1", "v5"): _files("""
crag_task_1_and_2_dev_v5.jsonl.bz2 739310088 d4c14897d8ea2f450a24e098b595d8247c6575f996f9869d6f27a020fe020618
"""),
    ("3", "v4"): _files("""
crag_task_3_dev_v4.tar.bz2.part1 2097152000 3a3f642643adc427b356b34fd078ba867c3905aa4341fc181457197aee9a55cf
crag_task_3_dev_v4.tar.bz2.part2 2097152000 abd76c029079b93065aba7fb4fc0e129a803de7ee0e1511432d0037d1782aa7c
crag_task_3_dev_v4.tar.bz2.part3 2097152000 d82e3c94e29a361635ed6b56797747b77ef3cf07dc454736d661461f32c23dab
crag_task_3_dev_v4.tar.bz2.part4 1432877269 ed48b1ca55606a7d22be4809b10d7de0251d429f01e689a066c6def2428995ad
"""),
    ("3", "v5"): _files("""
crag_task_3_dev_v5.tar.bz2.part0 2147483648 0220e4b43356ff32a00f35647a4cb375301773c7e66a48daf9329781fdfec3d7
crag_task_3_dev_v5.tar.bz2.part1 2147483648 9628e5f24bb4273afbdc380c13c68533fc5e5e788e00a973a7e2765566161330
crag_task_3_dev_v5.tar.bz2.part2 2147483648 533bb48a5bed3818262edd02219eff351493a2f35a276958d62b9614257471f5
crag_task_3_dev_v5.tar.bz2.part3 1283117287 cc8c4b0224a3d1512283433ed6418c2a4f633dfab98f76ef4acd38fd63b26464
"""),
}
# QASPER's publisher names no digests: these are digests of the served files, which several projects pin.
QASPER = _files("""
qasper-train-dev-v0.3.tgz 10835856 a28fdf966db827bcee3d873107d6b6669864fb7ca8fbf73a192f5e39191bdb5a
qasper-test-and-evaluator-v0.3.tgz 3865061 72a52a41193e2838b8074f80ac074b94f956b84886c36a61c58a7df4171bdd72
""")
QASPER_FILES = ("qasper-train-v0.3.json", "qasper-dev-v0.3.json", "qasper-test-v0.3.json")


def crag(
    task: Literal["1", "3"], folder: Path, progress: Progress, version: Literal["v4", "v5"] = "v4"
) -> list[Path]:
    """Downloads CRAG's archive of Task 3, or of Tasks 1 and 2 together, to `folder`. The default is v4, the
    earlier release, to compare with older results. v5 adds the label `popularity`, for slices."""
    if (task, version) not in CRAG:
        known = ", ".join(f"task {t} {v}" for t, v in CRAG)
        raise ConfError(f"CRAG has no task {task} {version}: expected one of {known}.")
    return fetch(CRAG[task, version], folder, CRAG_BASE, progress, hosts=CRAG_HOSTS)


def qasper(folder: Path, progress: Progress) -> list[Path]:
    """Downloads QASPER's train, dev and test sets and unpacks them in `folder`, next to their archives."""
    return unpack(fetch(QASPER, folder, QASPER_BASE, progress), QASPER_FILES, folder)


def unpack(archives: Iterable[Path], names: Sequence[str], folder: Path) -> list[Path]:
    """Extracts the files with these names to `folder`, from any folder within the archives. Raises DataError
    if a name is missing."""
    found: dict[str, Path] = {}
    for archive in archives:
        with tarfile.open(archive) as opened:
            for member in opened.getmembers():
                name = Path(member.name).name
                if name in names and member.isfile() and (content := opened.extractfile(member)):
                    partial = folder / f"{name}.partial"
                    with content, partial.open("wb") as out:
                        shutil.copyfileobj(content, out)
                    found[name] = partial.replace(folder / name)
    if missing := [n for n in names if n not in found]:
        raise DataError(f"{folder}: expected {', '.join(missing)} in the archives, found no such file")
    return [found[n] for n in names]


def fetch(
    files: Iterable[RemoteFile],
    folder: Path,
    base_url: str,
    progress: Progress,
    hosts: tuple[str, ...] = (),
    pause: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> list[Path]:
    """Downloads these files to `folder`, in order; a complete file is not requested again.

    Only `hosts` may serve the files; if it is empty, only the host of the base address. Raises DataError if
    the disk is too small, an existing file has other content, the server redirects elsewhere or sends other
    bytes than published, or six attempts in a row receive nothing. The next call resumes from NAME.partial.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted, missing = [(f, folder / f.name) for f in files], list[tuple[RemoteFile, Path, Path]]()
    for file, path in wanted:
        if not path.exists():
            missing.append((file, path, folder / f"{file.name}.partial"))
            continue
        if path.stat().st_size != file.size or _sha256(path) != file.sha256:
            raise DataError(f"{path}: expected the published content, found another. Move or delete it.")
        progress(file.name, file.size, file.size)
    held = sum(partial.stat().st_size for _, _, partial in missing if partial.exists())
    needed, free = sum(f.size for f, _, _ in missing) - held, shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(f"{folder}: {needed:,} bytes are missing, but only {free:,} are free. Free some.")
    base = httpx.URL(base_url)
    allowed = hosts or (base.host,)

    def refuse_strangers(request: httpx.Request) -> None:
        if request.url.host not in allowed or (base.scheme == "https" != request.url.scheme):
            raise DataError(f"{request.url}: a redirect; only {', '.join(allowed)} may serve this file.")

    how = {"timeout": TIMEOUT, "follow_redirects": True, "max_redirects": REDIRECTS}
    with open_client(httpx.Client, event_hooks={"request": [refuse_strangers]}, **how) as client:
        for file, path, partial in missing:
            backoff = Backoff(ATTEMPTS, first_s=1.0, jitter=jitter)
            _receive(client, urljoin(base_url, file.name), file, partial, progress, pause, backoff)
            if (found := _sha256(partial)) != file.sha256:
                partial.unlink()
                again = "Run it again; if it fails again, the published file changed, or a proxy changes it"
                wrong = f"expected sha256 {file.sha256}, received {found}. Nothing was kept"
                raise DataError(f"{path}: {wrong}. {again}.")
            os.replace(partial, path)
    return [path for _, path in wanted]


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _receive(
    client: httpx.Client,
    url: str,
    file: RemoteFile,
    partial: Path,
    progress: Progress,
    pause: Callable[[float], None],
    backoff: Backoff,
) -> None:
    """Extends the partial file to its full size; each request asks for the bytes after its current end. If
    the server sends the whole file instead, the partial file starts again."""
    partial.touch()
    while (have := partial.stat().st_size) != file.size:
        if have > file.size:
            partial.unlink()
            raise DataError(f"{url}: expected {file.size:,} bytes as published, received more; kept none.")
        progress(file.name, have, file.size)
        after_s = 0.0
        try:
            with client.stream("GET", url, headers=HEADERS | {"Range": f"bytes={have}-"}) as response:
                if response.status_code in RETRY_STATUSES:
                    after_s = retry_after_s(response.headers)
                    raise httpx.HTTPError(f"status {response.status_code}")
                start = _start(response, url, have, file.size)
                with partial.open("r+b") as out:
                    out.truncate(start)
                    out.seek(start)
                    for block in response.iter_bytes(BLOCK):
                        start += out.write(block)
                        progress(file.name, min(start, file.size), file.size)
                        if start > file.size:
                            break
                    out.flush()
                    os.fsync(out.fileno())
                if start < file.size:
                    raise httpx.ReadError(f"broke off at byte {start:,}")
        except httpx.TooManyRedirects as e:
            raise DataError(f"{url}: more than {REDIRECTS} redirects. Check the network's proxy.") from e
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            now = partial.stat().st_size
            if now > have:
                backoff.reset()
            if (wait_s := backoff.next_s(after_s)) is None:
                here = f"{now:,} of {file.size:,} bytes are here; run it again to get the rest"
                raise DataError(f"{url}: failed {ATTEMPTS} times in a row ({e}). {here}.") from e
            pause(wait_s)


def _start(response: httpx.Response, url: str, have: int, size: int) -> int:
    """Returns the offset in the file at which a response's bytes begin: `have` or 0. Raises DataError if the
    response is an error or a web page, or states another offset or size."""
    status, headers = response.status_code, response.headers
    if status not in (200, 206):
        raise DataError(f"{url}: expected the file, found status {status} {response.reason_phrase}.")
    if headers.get("Content-Type", "").startswith("text/html"):
        raise DataError(f"{url}: expected the file, found a web page: a log-in page of this network?")
    start, total = 0, int(headers.get("Content-Length", size))
    if status == 206:
        said = headers.get("Content-Range", "")
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", said)
        if not span or int(span[1]) != have:
            raise DataError(f"{url}: expected bytes from {have} on, received {said or None!r}.")
        start, total = have, int(span[2])
    if total != size:
        raise DataError(f"{url}: expected {size:,} bytes as published, the server says {total:,}.")
    return start
