"""Settings: what the environment variables and the working directory say. Nothing else in src reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raypipe.core.config import Conf
from raypipe.core.errors import ConfError


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are when the command line does not say."""

    home: Path  # RAYPIPE_HOME: demo data, stores and reports that were given no place
    store: str | None  # RAYPIPE_STORE
    conf: Conf  # RAYPIPE_CONF, ./conf, the installed copy, the checkout of an editable install
    ray: str  # RAY_ADDRESS; "local" (when it is not set) starts a Ray for this run
    auth: str | None  # RAY_AUTH_MODE
    submitted: str | None  # id of the submitted Ray job this runs in, else None
    metadata: Mapping[str, str] = field(default_factory=dict)  # that the Ray job was submitted with
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)  # the environment: endpoints' keys

    def store_to_fill(self, given: str | None) -> str:
        """The store that data is read into: as given, else RAYPIPE_STORE, else `default` under home."""
        return self.place(given or self.store or str(self.stores / "default"), "--store")

    def store_to_use(self, given: str | None) -> str:
        """The store of what was read before: the one to fill; the demo's, while that is all there is."""
        demo = self.stores / "demo"
        only_demo = not (self.stores / "default").exists() and demo.exists()
        return str(demo) if not (given or self.store) and only_demo else self.store_to_fill(given)

    @property
    def stores(self) -> Path:
        """The folder of the stores that were given no place."""
        return self.home / "stores"

    def place(self, path: str, what: str) -> str:
        """A URI as it is, a path made absolute, since workers have other working directories; ConfError for a
        relative path inside a submitted job, whose working directory goes away with the job."""
        if self.submitted and "://" not in path and not Path(path).is_absolute():
            raise ConfError(
                f"{what} {path!r} is relative, and a submitted job works in a temporary copy of the working "
                "directory: give an absolute path or a URI that every node sees"
            )
        return path if "://" in path else str(Path(path).absolute())


def from_environment(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """The settings of these variables and this working directory; None: the process's own."""
    environ, cwd = os.environ if environ is None else environ, cwd or Path.cwd()
    home = Path(environ.get("RAYPIPE_HOME") or Path.home() / ".cache" / "raypipe")
    package = Path(__file__).parents[1]
    folders = [Path(environ["RAYPIPE_CONF"])] if environ.get("RAYPIPE_CONF") else []
    folders += [cwd / "conf", package / "conf", package.parents[1] / "conf"]
    job = environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR")
    return Settings(
        home=home,
        store=environ.get("RAYPIPE_STORE") or None,
        conf=Conf(tuple(f for f in folders if f.is_dir())),
        ray=environ.get("RAY_ADDRESS") or "local",
        auth=environ.get("RAY_AUTH_MODE") or None,
        submitted=(environ.get("RAY_JOB_SUBMISSION_ID") or "unknown") if job else None,
        keys=environ,
        metadata={str(k): str(v) for k, v in (json.loads(job).get("metadata") or {}).items()} if job else {},
    )
