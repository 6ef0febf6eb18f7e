"""Text files: read line by line, and written whole or not at all."""

from __future__ import annotations

import glob
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TextIO, TypeVar

from raypipe.core.errors import ConfError, DataError, DiskFull, RaypipeError, Unavailable, is_full

T = TypeVar("T")

_LINE_BYTES = 64 << 20  # a longer line cannot be a row: stop before it fills the memory
_GZIP_MAGIC = b"\x1f\x8b"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line with its file and number, for messages."""

    path: Path
    number: int  # from 1
    text: str  # without its end

    def error(self, expected: str, found: object) -> DataError:
        shown = repr(found) if len(repr(found)) <= 120 else repr(found)[:117] + "..."
        return DataError(f"{self.path}:{self.number}: expected {expected}, found {shown}")

    def object(self) -> dict[str, Any]:
        try:
            found = json.loads(self.text, parse_constant=_refuse)
        except (ValueError, RecursionError) as e:
            raise self.error(f"a JSON object ({e})", self.text) from e
        if not isinstance(found, dict):
            raise self.error("a JSON object", found)
        return found

    def fields(self, names: str) -> list[str]:
        """Splits the line into fields at white space. Raises DataError if `names` has more or fewer words."""
        values = self.text.split()
        if len(values) != len(names.split()):
            raise self.error(f"{len(names.split())} fields ({names})", self.text)
        return values

    def number_of(self, kind: Callable[[str], T], text: str, meaning: str) -> T:
        try:
            return kind(text)
        except ValueError:
            raise self.error(meaning, text) from None


def lines(path: Path) -> Iterator[TextLine]:
    """Yields all lines of a UTF-8 file, plain or .gz, blank lines included. The byte order mark and line ends
    are removed. Raises DataError if the file is missing, truncated, mislabelled or not UTF-8, and if a line
    exceeds 64 MiB."""
    number = 0
    try:
        with _open(path) as stream:
            while raw := stream.readline(_LINE_BYTES + 1):
                number += 1
                if len(raw) > _LINE_BYTES:
                    raise DataError(
                        f"{path}:{number}: expected a line of at most {_LINE_BYTES} bytes, found more"
                    )
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                yield TextLine(path, number, raw.decode(encoding).rstrip("\r\n"))
    except UnicodeDecodeError as e:
        raise DataError(
            f"{path}:{number}: expected UTF-8 text, found {e.object[e.start : e.start + 8]!r}"
        ) from e
    except (gzip.BadGzipFile, zlib.error, EOFError) as e:
        raise DataError(
            f"{path}: expected a whole gzip file, found damage after line {number} ({e}); write it again"
        ) from e
    except OSError as e:
        raise DataError(f"{path}: expected a readable file, found: {e.strerror}") from e


def filled(path: Path) -> Iterator[TextLine]:
    return (line for line in lines(path) if line.text.strip())


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    stream = path.open("rb")
    if stream.read(2) == _GZIP_MAGIC:
        stream.close()
        raise DataError(f"{path}: expected text, found gzip data; name it {path.name}.gz")
    stream.seek(0)
    return stream


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Converts an OSError of a block that writes or removes a file. Raises DiskFull if the disk is full, and
    Unavailable otherwise."""
    try:
        yield
    except RaypipeError:
        raise
    except OSError as e:
        if is_full(e):
            raise DiskFull(f"{path}: the disk is full. Free some space and run the same command again") from e
        why = f"{path} cannot be written now: {e}. Correct that, then run the same command again"
        raise Unavailable(why) from e


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path. When the block succeeds, the file written there replaces `path`. Until then,
    and on failure, the old file remains. Success also removes temporary files of killed processes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            os.replace(temporary, path)
            for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
                if not _runs(left.name.rsplit(".", 2)[1]):
                    left.unlink(missing_ok=True)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """Opens a text stream for the new content of `path`. It replaces the file when the block succeeds
    (`replacing`). Lone surrogates, which UTF-8 cannot hold, are written as JSON escapes."""
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as stream,
    ):
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


def write_text(path: Path, text: str) -> None:
    with replaced(path) as out:
        out.write(text)


def write_json(path: Path, tree: Any) -> None:
    """Writes a JSON value, as `replaced` does. Raises ValueError for NaN, which is not JSON."""
    write_text(path, json.dumps(tree, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def write_json_lines(path: Path, objects: Iterable[Mapping[str, Any]]) -> int:
    """Writes objects as lines of JSON, as `replaced` does. Returns their number."""
    count = 0
    with replaced(path) as out:
        for found in objects:
            out.write(json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def require_writable(folder: Path, name: str) -> None:
    """Raises ConfError if a folder cannot be made or written; the message begins with the argument `name`.
    Makes nothing, so it can be called before the work for the folder starts."""
    there = next(f for f in (folder.absolute(), *folder.absolute().parents) if f.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        why = "not writable" if there.is_dir() else "a file"
        raise ConfError(f"{name}: {folder} cannot be written: {there} is {why}. Name another folder")


def require_file(path: str | Path, name: str) -> None:
    """Raises ConfError if `path` is a folder, or if its parent folder cannot be made or written."""
    if Path(path).is_dir():
        raise ConfError(f"{name}: expected the name of a file to write, found the folder {path}")
    require_writable(Path(path).absolute().parent, name)


def _runs(pid: str) -> bool:
    """Returns whether a process is alive. Also returns True if `pid` is not a process id."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, PermissionError):
        return True
    return True


def json_lines(text: str | bytes) -> list[Any]:
    r"""Parses lines of JSON, and skips blank lines. Raises ValueError if a line is not JSON. Only a line feed
    ends a line: a JSON text may contain other separators, such as U+2028.

    >>> json_lines('["a\u2028b"]\n\n{"c": 1}\n') == [["a\u2028b"], {"c": 1}]
    True
    """
    whole = text.decode() if isinstance(text, bytes) else text
    return [json.loads(line) for line in whole.split("\n") if line.strip()]


def written(value: Any) -> str:
    """Formats a value for people: 5.0 as 5, True as yes; others as `str` does."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
