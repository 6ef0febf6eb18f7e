"""A submitted job from a new home: packages of its own, its store in a bucket, its memory limited.

    python bench/drills/submitted.py --questions 20

`ray job submit --working-dir . -- python jobs/eval.py` as docs/running.md has it, on a head that starts in a
home with nothing in it, under `ulimit -d`. A runtime_env brings a wheel with pip; the recipe has a step of
that wheel. Data and store lie in a bucket of moto's S3 server. The job runs twice: the second asks nothing.
Prints one line of JSON; exit code 1 if a job failed, or a question has no answer that the step made.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATIENCE_S = 300.0  # for a server to listen, and for the agent that takes jobs
MEMORY_GIB = (
    4.0  # private memory of one process: Ray's threads reserve stacks of 8 MB each, some 1 GiB a worker
)
BUCKET = "drill"

STEP = '''"""A step of a wheel: the text of the question in capitals."""

from dataclasses import dataclass, replace
from typing import ClassVar

from raypipe.core.records import ANSWERED, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Loud:
    """Replies with the question in capitals."""

    into: str = "loud"
    version: ClassVar[int] = 1

    def reads(self):
        return frozenset({"text"})

    def writes(self):
        return frozenset({f"replies.{self.into}"})

    def open(self, kit):
        async def ask(questions):
            said = (Reply(q.text.upper(), ANSWERED) for q in questions)
            return [replace(q, replies={**q.replies, self.into: r}) for q, r in zip(questions, said)]

        return ask
'''
RECIPE = """
about: passages from words alone, and an answer from a step of a wheel
corpus:
  - parse: {html: lxml, via: fast, kinds: [page]}
  - split: {child_chars: 200}
  - embed: {model: hash-embedder}
question:
  - dense: {model: hash-embedder, top: 10}
  - drillsteps:Loud: {into: loud}
  - decide: {prefer: [loud]}
"""


def wheel(folder: Path) -> Path:
    """A wheel with one module, as pip takes it."""
    made, about = folder / "drillsteps-1.0-py3-none-any.whl", "drillsteps-1.0.dist-info"
    files = {
        "drillsteps.py": STEP,
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: drillsteps\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: drill\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [*(f"{name},," for name in files), f"{about}/RECORD,,"]
    with zipfile.ZipFile(made, "w") as out:
        for name, text in {**files, f"{about}/RECORD": "\n".join(record) + "\n"}.items():
            out.writestr(name, text)
    return made


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str], env: Mapping[str, str], answers: str, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all that it starts, until the block ends; `answers`: the address that says it is up."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            late = time.monotonic() + PATIENCE_S
            while not _up(answers):
                if process.poll() is not None or time.monotonic() > late:
                    raise SystemExit(f"{command[0]} did not come up: {log.read_text()[-2000:]}")
                time.sleep(0.5)
            yield process
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def _up(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5).status_code < 500
    except httpx.TransportError:
        return False


def environment(home: Path, s3: str) -> dict[str, str]:
    """Of a shell in a new home, with the bucket's address and keys."""
    unset = ("RAY_ADDRESS", "RAY_AUTH", "RAYPIPE_", "AWS_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(unset)}
    keys = {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ENDPOINT": s3,  # pyarrow reads the one, Lance the other
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "invented",
        "AWS_SECRET_ACCESS_KEY": "invented",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    path = f"{BIN}{os.pathsep}{env['PATH']}"
    here = {
        "PATH": path,
        "HOME": str(home),
        "RAYPIPE_HOME": str(home / "raypipe"),
        "RAY_AUTH_MODE": "disabled",
    }
    return {**env, **keys, **here, "RAY_worker_niceness": "0", "RAY_agent_register_timeout_ms": "120000"}


def submit(address: str, env: Mapping[str, str], words: Sequence[str]) -> str:
    """What the job printed. Raises SystemExit if it failed."""
    command = [str(BIN / "ray"), "job", "submit", "--address", address, *words]
    late = time.monotonic() + PATIENCE_S
    while True:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        said = done.stdout + done.stderr
        if "No available agent to submit job" not in said or time.monotonic() > late:
            break
        time.sleep(3)
    if done.returncode:
        raise SystemExit(f"the job ended with {done.returncode}: {said[-4000:]}")
    return said


def drilled(folder: Path, questions: int, memory_gib: float) -> dict[str, Any]:
    """Both jobs, and what they came to."""
    from raypipe.contrib.world.write import write

    write(folder / "world", questions, pages=10, page_chars=1500)
    (folder / "home").mkdir()
    (folder / "recipe.yaml").write_text(RECIPE)
    s3, dashboard = free_port(), free_port()
    env = environment(folder / "home", f"http://127.0.0.1:{s3}")
    moto = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(s3)]
    head = [
        str(BIN / "ray"),
        "start",
        "--head",
        "--block",
        "--num-cpus=2",
        "--node-ip-address=127.0.0.1",
        f"--port={free_port()}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={free_port()}",
        f"--dashboard-agent-listen-port={free_port()}",
        "--disable-usage-stats",
        "--object-store-memory=200000000",
    ]
    limited = ["bash", "-c", f'ulimit -d {int(memory_gib * (1 << 20))} && exec "$@"', "head", *head]
    address = f"http://127.0.0.1:{dashboard}"
    runtime = json.dumps({"pip": [str(wheel(folder))]})
    words = ["--working-dir", ".", "--runtime-env-json", runtime, "--", "python", "jobs/eval.py"]
    words += [str(folder / "recipe.yaml"), "--models", str(ROOT / "conf" / "models.yaml")]
    words += ["--data", f"s3://{BUCKET}/questions.jsonl", "--store", f"s3://{BUCKET}/store"]
    seconds, reports = [], []
    with running(moto, env, f"http://127.0.0.1:{s3}/moto-api/", folder / "moto.log"):
        upload(env, folder / "world" / "questions.jsonl")
        with running(limited, env, f"{address}/api/version", folder / "head.log"):
            for name in ("first", "second"):
                start = time.monotonic()
                submit(address, env, [*words, "--out", str(folder / name)])
                seconds.append(round(time.monotonic() - start, 1))
                reports.append(json.loads((folder / name / "run.json").read_text()))
        stored = keys(env)
    lines = (folder / "first" / "predictions.jsonl").read_text().splitlines()
    loud = [row for row in map(json.loads, lines) if row["prediction"] == row["query"].upper()]
    return {
        "questions": reports[0]["questions"],
        "loud": len(loud),
        "computed": [sum(s["computed"] for s in r["steps"]) for r in reports],
        "objects": len(stored),
        "seconds": seconds,
        "memory_gib": memory_gib,
    }


def _client(env: Mapping[str, str]) -> Any:
    import boto3  # type: ignore[import-untyped]

    names = {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    keys = {name: env[variable] for name, variable in names.items()}
    return boto3.client("s3", endpoint_url=env["AWS_ENDPOINT_URL"], region_name="us-east-1", **keys)


def upload(env: Mapping[str, str], file: Path) -> None:
    client = _client(env)
    client.create_bucket(Bucket=BUCKET)
    client.upload_file(str(file), BUCKET, file.name)


def keys(env: Mapping[str, str]) -> list[str]:
    """Keys of the store's objects."""
    pages = _client(env).get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="store/")
    return [o["Key"] for page in pages for o in page.get("Contents", [])]


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--questions", type=int, default=20, metavar="N")
    parser.add_argument("--memory-gib", type=float, default=MEMORY_GIB, metavar="G", help="of one process")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    with tempfile.TemporaryDirectory(prefix="raypipe-job-") as folder:
        found = drilled(Path(folder), given.questions, given.memory_gib)
    print(json.dumps(found))
    first, second = found["computed"]
    sound = found["questions"] == found["loud"] == given.questions and first > 0 == second
    return 0 if sound and found["objects"] else 1


if __name__ == "__main__":
    sys.exit(main())
