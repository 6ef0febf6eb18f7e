"""Search for recipes, clusters, prompts and other files in the folders of configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.plugins import conf_folders

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


@dataclass(frozen=True, slots=True)
class Conf:
    """Folders of configuration, searched in order before those of plugins. The first match wins."""

    folders: tuple[Path, ...]

    def _every(self) -> Iterator[Path]:
        yield from self.folders
        yield from conf_folders()

    def find(self, kind: str, name: str, suffix: str = ".yaml") -> Path:
        """Finds a file. A `name` with / or with `suffix` is a path; another name is looked up under `kind`/.
        Raises ConfError if there is no such file."""
        if name.endswith((suffix, ".yml")) or "/" in name:
            path = Path(name)
            if path.is_file():
                return path
            raise ConfError(f"{name}: {'a folder, expected a file' if path.is_dir() else 'no such file'}")
        return self.below(kind, name, suffix)

    def below(self, kind: str, name: str, suffix: str = ".yaml") -> Path:
        """Finds a file by name, or by folder and name, under `kind`/. Raises ConfError as `find` does."""
        if _NAME.fullmatch(name) and (found := self._first(f"{kind}/{name}{suffix}")) is not None:
            return found
        files = ((p, f / kind) for f in self._every() for p in (f / kind).rglob(f"*{suffix}"))
        known = {p.relative_to(root).as_posix().removesuffix(suffix) for p, root in files}
        raise ConfError(f"no {name!r} under {kind}/; {did_you_mean(name, known)}")

    def _first(self, name: str) -> Path | None:
        return next((f / name for f in self._every() if (f / name).is_file()), None)

    def layers(self, name: str) -> list[Path]:
        """Returns the file `name` of each folder that has one. The first folder's file comes last, because a
        reader lets later files override earlier ones. Raises ConfError if no folder has the file."""
        found = dict.fromkeys((f / name).resolve() for f in self._every() if (f / name).is_file())
        return list(reversed(found)) or [self.file(name)]

    def file(self, name: str) -> Path:
        """Finds a file directly in a folder, such as models.yaml. Raises ConfError if no folder has it."""
        if (found := self._first(name)) is not None:
            return found
        looked = ", ".join(str(f) for f in self.folders) or "nowhere"
        raise ConfError(f"no {name} found; looked in: {looked}. Set RAYPIPE_CONF to the folder that has it")
