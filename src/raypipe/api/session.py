"""Session: the settings, models file, graphs and cluster file that calls share.

It turns names into recipes, catalogs, clusters and stores, and starts nothing. Only this module reads
raypipe's settings from environment variables. Modules are imported by the methods that need
them, since every command imports this one, even for its help.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from raypipe.core import config
from raypipe.core.conf import Conf
from raypipe.core.config import Where
from raypipe.core.errors import ConfError, DataError
from raypipe.core.progress import Progress
from raypipe.core.references import Reference
from raypipe.core.textfile import write_json

if TYPE_CHECKING:
    from raypipe.core.protocols import Adoption, Model
    from raypipe.models.catalog import Catalog
    from raypipe.models.hosts import EndpointAddress
    from raypipe.recipes.recipe import Recipe
    from raypipe.runs.cluster.cluster_file import Cluster
    from raypipe.store import Store

Place: TypeAlias = "Store | str | Path | None"
"""A store, or its address; None: $RAYPIPE_STORE, else a default store under $RAYPIPE_HOME."""
Named: TypeAlias = "Recipe | str | Path"
"""A recipe, or its name or path."""

UNSENT, TAKEN = "unsent_fields.json", "taken_chats.json"
"""Files under the home: fields of chats that servers refused, and chats that servers accepted."""
TAKEN_S = 24 * 3600.0
"""Seconds (a day) after which `ask` again sends a test chat to a server that accepted one. Keys, models and
gateways change between two days of work. A change within a day costs one refused chat."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from environment variables and the working directory."""

    home: Path  # RAYPIPE_HOME: stores and reports without a given place, demo data, copies, fetched models
    store: str | None  # RAYPIPE_STORE
    conf: Conf  # searched in order: RAYPIPE_CONF, ./conf, installed copy, checkout of an editable install
    ray: str  # RAY_ADDRESS; "local" (if it is not set) starts a Ray for this run
    auth: str | None  # RAY_AUTH_MODE
    submitted: str | None  # id of the submitted Ray job that runs this; None: no such job
    metadata: Mapping[str, str] = field(default_factory=dict)  # metadata of the submitted Ray job
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)  # environment, for keys of endpoints

    def store_to_fill(self, given: str | Path | None) -> str:
        """Returns the store for new data: as given, else RAYPIPE_STORE, else `default` under the home."""
        return self.place(str(given or self.store or self.stores / "default"), "--store")

    def store_to_use(self, given: str | Path | None) -> str:
        """Returns the store to read: as `store_to_fill`, but the demo's store if `default` does not exist."""
        demo = self.stores / "demo"
        only_demo = not (self.stores / "default").exists() and demo.exists()
        return str(demo) if not (given or self.store) and only_demo else self.store_to_fill(given)

    def unsent(self) -> dict[str, list[str]]:
        """Maps each model on a server to the chat fields that this server refused in runs under this home."""
        return _learned(self.home / UNSENT)

    def keep_unsent(self, name: str, fields: Sequence[str]) -> None:
        """Records the fields that chats to the model `name` leave out, in place of the recorded ones."""
        _keep(self.home / UNSENT, {**self.unsent(), name: list(fields)})

    def taken_chats(self) -> dict[str, float]:
        """Maps the digest of each chat accepted in the last day (`TAKEN_S`) to its time, in seconds since
        1970."""
        now = time.time()
        return {key: s for key, s in _learned(self.home / TAKEN).items() if now - TAKEN_S < s <= now}

    def keep_taken_chats(self, taken: Mapping[str, float]) -> None:
        """Records the accepted chats, in the form of `taken_chats`, in place of the recorded ones."""
        if taken != self.taken_chats():
            _keep(self.home / TAKEN, taken)

    @property
    def stores(self) -> Path:
        """Folder of the stores for which no place is given."""
        return self.home / "stores"

    def place(self, path: str, what: str) -> str:
        """Returns the absolute form of a path, since workers run in other folders. A URI is returned
        unchanged. Raises ConfError, naming `what`, for a relative path in a submitted job, which runs in a
        temporary folder."""
        if "://" in path:
            return path
        here = Path(path)
        if self.submitted and not here.is_absolute():
            why = "is relative, but a submitted job runs in a temporary copy of the working directory"
            raise ConfError(f"{what} {path!r} {why}. Give an absolute path or a URI for every node")
        # With `..` a folder would have two names and count as two.
        return str(here.resolve() if ".." in here.parts else here.absolute())


def _learned(file: Path) -> dict[str, Any]:
    """Reads a JSON object from a file; {} if it is missing. Raises ConfError for any other content."""
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as e:
        raise ConfError(f"{file}: expected JSON, found {e}. Delete the file: runs write it again") from e


def _keep(file: Path, tree: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, tree)


def from_environment(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """Reads the settings from environment variables and a working directory; None: those of the process."""
    environ, cwd = os.environ if environ is None else environ, cwd or Path.cwd()
    package = Path(__file__).parents[1]
    folders = [Path(environ["RAYPIPE_CONF"])] if environ.get("RAYPIPE_CONF") else []
    folders += [cwd / "conf", package / "conf", package.parents[1] / "conf"]
    job = environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR")
    metadata = (json.loads(job).get("metadata") or {}) if job else {}
    return Settings(
        home=Path(environ.get("RAYPIPE_HOME") or Path.home() / ".cache" / "raypipe"),
        store=environ.get("RAYPIPE_STORE") or None,
        conf=Conf(tuple(f for f in folders if f.is_dir())),
        ray=environ.get("RAY_ADDRESS") or "local",
        auth=environ.get("RAY_AUTH_MODE") or None,
        submitted=(environ.get("RAY_JOB_SUBMISSION_ID") or "unknown") if job else None,
        keys=environ,
        metadata={str(k): str(v) for k, v in metadata.items()},
    )


@dataclass(frozen=True, slots=True)
class Session:
    """Settings that calls share. Each field except `progress` has the default of the command line."""

    settings: Settings = field(default_factory=from_environment)
    models: str | None = None  # models file; its entries replace those of conf/models.yaml
    graphs: Mapping[str, str] = field(default_factory=dict)  # name -> location; "" -> location of all others
    cluster: str = "laptop"  # a name under conf/clusters, or a path
    progress: bool = False  # True: progress is shown on stderr
    llm: str | None = None  # replaces every generator: an entry, a folder or URL#MODEL
    sets: tuple[str, ...] = ()  # STEP[:INTO].FIELD=VALUE: set in recipes that are given by name or path
    adopting: str = ""  # address of the store whose adopted models count as others; "": none

    def over(self, store: Place, fills: bool = False) -> Session:
        """Returns a copy of the session in which the models adopted in `store` count as other models. `fills`
        is as in `address`."""
        return replace(self, adopting=self.address(store, fills))

    def recipe(self, recipe: Named, data: Sequence[str | Path] = ()) -> Recipe:
        """Resolves a recipe by name or path, and returns a Recipe unchanged. Graphs without a location in the
        session are read from the folder `kg` in the first of `data` that has one. Raises as `load_recipe`."""
        if not isinstance(recipe, str | Path):
            return recipe
        from raypipe.recipes.read_recipe import from_tree, read_tree, with_fields
        from raypipe.recipes.resolve import resolvers

        files = self.settings.conf
        folders = (Path(path) / "kg" for path in data)
        lying = next(({"": str(folder)} for folder in folders if folder.is_dir()), {})
        resolve = resolvers(files, self.catalog(), {**lying, **self.graphs})
        path, here = files.find("recipes", str(recipe)), Path.cwd().resolve()
        tree, where = read_tree(path, lambda name: files.find("recipes", name)), Where(str(path))
        # `file` must be equal in all runs of a recipe: its absolute path. A submitted job runs in a copy, in
        # another folder each time, so there it is the path relative to the working directory.
        file = path.resolve()
        if self.settings.submitted is not None and file.is_relative_to(here):
            file = file.relative_to(here)
        changed = with_fields(tree, self.sets, where) if self.sets else tree
        try:
            made = from_tree(path.stem, changed, where, resolve)
        except ConfError as e:
            if not self.sets:
                raise
            raise ConfError(f"with {' '.join(f'--set {one}' for one in self.sets)}: {e}") from e
        return replace(made, file=str(file), sets=self.sets)

    def catalog(self) -> Catalog:
        """Reads the catalog of models: models.yaml of each configuration folder, the shipped one first, then
        the file `models`. A later entry replaces an earlier one of the same name completely."""
        from raypipe.models import catalog

        files = [*self.settings.conf.layers("models.yaml"), *([Path(self.models)] if self.models else [])]
        fetched = self.settings.home / "models"
        read = [catalog.read(config.read_yaml(file), file, fetched=fetched) for file in files]
        whole = functools.reduce(catalog.Catalog.overlaid, read)
        whole = replace(whole, unsent=self.settings.unsent(), adopted=self._adopted())
        return whole if self.llm is None else replace(whole, llm=whole.stand_in("--llm", self.llm))

    def _adopted(self) -> Mapping[str, Adoption]:
        """Maps the identity of each model that the store has adopted to its adoption, with the other
        model."""
        from raypipe.store import Store
        from raypipe.store.files import ADOPTED

        store = Store.find(self.adopting) if self.adopting else None
        if store is None or not store.files.names(ADOPTED):
            return {}
        from raypipe.runs.adoption import adoptions

        return {identity: found.adoption for identity, found in adoptions(store).items()}

    def cluster_file(self) -> Cluster:
        """Reads the cluster file. If `llm` names a server, adds this server to the file as the endpoint
        `llm`, with the key from the environment."""
        from raypipe.models.entry import LLM  # imported when it is used
        from raypipe.models.hosts import ServedModel, is_served
        from raypipe.runs.cluster.cluster_file import Cluster

        path = self.settings.conf.find("clusters", self.cluster)
        file = config.build(Cluster, config.read_yaml(path), Where(str(path)))
        if self.llm is None or not is_served(self.llm):
            return file
        return file.with_endpoint(LLM, ServedModel.parse(self.llm, "--llm").url, self.settings.keys)

    def shown(self) -> Progress:
        """Returns the progress display on stderr. It prints nothing if `progress` is False."""
        return Progress(sys.stderr, silent=not self.progress)

    def store(self, given: Place) -> Store:
        """Opens a store to read. Raises StoreError if it does not exist."""
        from raypipe.store import Store

        return given if isinstance(given, Store) else Store.open(self.settings.store_to_use(given))

    def address(self, given: Place, fills: bool) -> str:
        """Returns the address of a store, which need not exist. `fills` True: the store is for new data."""
        from raypipe.store import Store

        if isinstance(given, Store):
            return given.uri
        return self.settings.store_to_fill(given) if fills else self.settings.store_to_use(given)

    def store_to_fill(self, given: Place, scratch: Path | None = None) -> Store:
        """Opens the store that data is read into, and creates it if it is missing. A command that stores
        nothing passes `scratch`: a missing store is then created in that folder."""
        from raypipe.store import Store

        if isinstance(given, Store):
            return given
        uri = self.settings.store_to_fill(given)
        if scratch is not None and Store.find(uri) is None:
            uri = str(scratch / "store")
        return Store.create(uri)

    def local_run(self, run: str | Path) -> Path:
        """Returns the local path of a run's folder or of a file of predictions. Files of an object store are
        copied under the home. Raises DataError if the copy fails or if the copied eval did not end. A local
        path is not checked."""
        if "://" not in str(run):
            return Path(run)
        from raypipe.readers.object_store import download
        from raypipe.runs.run_parts import EVAL_AGAIN, RunFolder

        path = download(str(run), self.settings.home / "fetched")
        if path.is_dir() and not (record := RunFolder(path).record).exists():
            what = f"expected the --out of a finished eval, found no {record.name}, which is sent last"
            raise DataError(f"{run}: {what}. {EVAL_AGAIN}")
        return path


def load_recipe(
    recipe: str | Path,
    models: str | None = None,
    conf: Conf | None = None,
    graphs: Mapping[str, str] = MappingProxyType({}),
    llm: str | None = None,
    sets: Sequence[str] = (),
) -> Recipe:
    """Loads a recipe by name or path, with the prompts, models and graphs that it names.

    `models` is a models file; its entries replace those of conf/models.yaml. `conf` has the folders where
    names are looked up; None: $RAYPIPE_CONF, ./conf, then the installed copy. `graphs`, `llm` and `sets` are
    as in `Session`. Raises ConfError with file, field, expected and found value, and ModelMissing.
    """
    settings = from_environment()
    used = settings if conf is None else replace(settings, conf=conf)
    return Session(used, models, graphs, llm=llm, sets=tuple(sets)).recipe(recipe)


def require_graphs(recipe: Recipe) -> Recipe:
    """Checks the graphs, public data and examples of a recipe, and returns the recipe. Raises ConfError if
    one is missing or has changed since the recipe was resolved, and DataError for bad files."""
    for ref in recipe.named(Reference):
        ref.require()
    return recipe


def endpoint_addresses(
    file: Cluster, models: Sequence[Model], keys: Mapping[str, str], batch: bool = False
) -> dict[str, EndpointAddress]:
    """Maps the name of each endpoint in `file` that one of `models` uses to its address and key. `batch`
    permits batch APIs, whose replies may take a day. Raises ConfError if the environment lacks a key."""
    from raypipe.models.entry import REMOTE
    from raypipe.models.hosts import EndpointAddress

    found, wanted = {}, {m.path for m in models if m.loader in REMOTE}
    for name, at in ((n, e) for n, e in file.endpoints.items() if n in wanted):
        if at.key_env and not keys.get(at.key_env):
            why = f"expected its key in the environment variable {at.key_env}, found none"
            raise ConfError(f"endpoint {name!r}: {why}. Set it, or remove key_env from the cluster file")
        values = {f.name: getattr(at, f.name) for f in fields(at) if f.name != "key_env"}
        values |= {"key": keys[at.key_env] if at.key_env else "", "batch": at.batch if batch else ""}
        found[name] = EndpointAddress(**values)
    return found


def swap_steps(
    recipe: Named, swaps: Sequence[str], data: Sequence[str | Path] = (), session: Session | None = None
) -> Recipe:
    """Replaces steps of a recipe by steps of other recipes. Each of `swaps` is STEP=RECIPE: `rerank=tuned`.

    `data` are folders that may have the recipe's graphs. Raises ConfError for an invalid swap, for a step
    that one of the recipes does not have, and for steps that do not fit together.
    """
    from raypipe.recipes.read_recipe import swapped

    session = session or Session()
    found, theirs = session.recipe(recipe, data), replace(session, sets=())  # --set changes only `recipe`
    for text in swaps:
        step, sign, other = text.partition("=")
        if not (step and sign and other):
            raise ConfError(f"--swap {text!r}: expected STEP=RECIPE, such as rerank=tuned")
        found = swapped(found, step.strip(), theirs.recipe(other.strip(), data))
    return found
