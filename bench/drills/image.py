"""Runs the steps of the Dockerfile in an empty Debian: what can be tried without a container runtime.

    sudo python bench/drills/image.py --root /var/tmp/image --profile local

debootstrap puts a Debian of the base image's name and its own Python 3.11 under --root, in the place of
`FROM`. RUN, COPY, USER, WORKDIR, ARG, ENV and CMD follow as they stand in the Dockerfile, each RUN by chroot
as its user; COPY takes the files that git tracks and .dockerignore leaves. At the end the CMD runs, then the
job that `make eval` runs. Not shown by it: layers, the base image's own Python, a registry.

Needs root, debootstrap, and the network for packages; `--bind` shows a folder of wheels inside. Prints a line
of JSON for each step with its seconds, and exits with 1 at the first that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = "python3,python3-venv,ca-certificates"  # what the base image has and a minimal Debian lacks
KEPT = re.compile(r"(PIP|UV|SSL|REQUESTS|CURL)_\w+|\w+_(proxy|PROXY)")  # variables that reach the network
DEMO = "RAY_ADDRESS=local python jobs/eval.py"


def steps() -> list[tuple[str, str]]:
    """(instruction, its words) of the Dockerfile, in order."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = (line.strip() for line in text.splitlines())
    return [(*line.split(None, 1),) for line in lines if line and not line.startswith("#")]  # type: ignore[misc]


def tracked() -> list[str]:
    """The files of the build's context: those of git that .dockerignore leaves."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    ignored = [line for line in (ROOT / ".dockerignore").read_text().split("\n") if line and line[0] != "#"]
    names = [name for name in listed.stdout.split("\0") if name]
    return [n for n in names if not any(fnmatch(n, p) or n.startswith(f"{p}/") for p in ignored)]


class Image:
    """A root folder, and what the Dockerfile has said so far of user, folder and variables."""

    def __init__(self, root: Path, arguments: dict[str, str]) -> None:
        self.root, self.arguments = root, arguments
        self.user, self.folder = "0:0", "/"
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.variables = {k: v for k, v in os.environ.items() if KEPT.fullmatch(k)} | {"PATH": path}

    def run(self, command: str) -> None:
        home = "/root" if self.user == "0:0" else "/home/raypipe"
        env = {**self.variables, "HOME": home, **self.arguments}
        inside = [
            "chroot",
            f"--userspec={self.user}",
            str(self.root),
            "sh",
            "-c",
            f"cd {self.folder} && {command}",
        ]
        subprocess.run(inside, env=env, check=True, stdout=sys.stderr)

    def copy(self, words: str) -> None:
        """Copies files or folders, with the owner that --chown names."""
        *sources, target = [w for w in shlex.split(words) if not w.startswith("--")]
        owner = re.search(r"--chown=(\d+):(\d+)", words)
        place = self.root / self.folder.lstrip("/")
        for source in sources:
            for name in tracked():
                if source not in (".", name) and not name.startswith(f"{source}/"):
                    continue
                under = name if source == "." else name.removeprefix(source).lstrip("/") or Path(name).name
                to = place / target / under
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, to)
        if owner:
            subprocess.run(["chown", "-R", f"{owner[1]}:{owner[2]}", str(place)], check=True)

    def do(self, step: str, words: str) -> None:
        if step == "RUN":
            self.run(words)
        elif step == "COPY":
            self.copy(words)
        elif step == "USER":
            self.user = words
        elif step == "WORKDIR":
            self.folder = words
        elif step == "ARG":
            name, _, value = words.partition("=")
            self.arguments.setdefault(name, value)
        elif step == "ENV":
            for pair in shlex.split(words):
                name, _, value = pair.partition("=")
                self.variables[name] = value.replace("$PATH", self.variables["PATH"])
        elif step == "CMD":
            self.run(shlex.join(json.loads(words)))
        else:
            raise SystemExit(f"Dockerfile: no such instruction is known here: {step} {words}")


def mounts(root: Path, bound: list[str]) -> Iterator[list[str]]:
    """Commands that show /proc, /dev, shared memory and folders of wheels inside."""
    yield ["mount", "-t", "proc", "proc", str(root / "proc")]
    for folder in ("/dev", "/dev/shm", *bound):
        (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        yield ["mount", "--bind", folder, str(root / folder.lstrip("/"))]


def debian(root: Path, suite: str, mirror: str) -> None:
    """A Debian with a Python, unless there is one, and this machine's way to the network."""
    if (root / "etc/debian_version").exists():
        return
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(root)]
    subprocess.run([*command, *([mirror] if mirror else [])], check=True, stdout=sys.stderr)
    for name in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf"):
        if Path(name).exists():
            shutil.copy2(name, root / name.lstrip("/"))


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    at = "a new folder for the Debian, or one that an earlier try has left"
    args.add_argument("--root", required=True, type=Path, help=at)
    args.add_argument("--profile", default="local", help="PROFILE of the Dockerfile: local, cpu or gpu")
    args.add_argument("--mirror", default="", help="where debootstrap gets packages (its own default)")
    args.add_argument("--bind", action="append", default=[], metavar="DIR", help="a folder shown inside, too")
    given = args.parse_args()
    image = Image(given.root.absolute(), {"PROFILE": given.profile})
    mounted = list[str]()
    try:
        for step, words in [*steps(), ("RUN", DEMO)]:
            start = time.perf_counter()
            if step == "FROM":
                debian(image.root, words.rpartition("-")[2], given.mirror)
                for command in mounts(image.root, given.bind):
                    subprocess.run(command, check=True)
                    mounted.append(command[-1])
            else:
                image.do(step, words)
            seconds = round(time.perf_counter() - start, 1)
            print(
                json.dumps({"step": step, "words": " ".join(words.split())[:90], "seconds": seconds}),
                flush=True,
            )
    except subprocess.CalledProcessError as e:
        print(json.dumps({"step": step, "words": words[:200], "failed": e.returncode}), flush=True)
        return 1
    finally:
        for folder in reversed(mounted):
            subprocess.run(["umount", "--lazy", folder], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
