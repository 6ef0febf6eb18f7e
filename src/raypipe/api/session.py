"""The session: settings, models file, places of graphs and cluster file that calls share.

Turns names into what they mean: a recipe, a catalog, a cluster, a store. Starts nothing. The settings are
what the environment variables and the working directory say; nothing else in src reads them. What a name
needs is imported when it is looked up: every command has a session, its help too.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from raypipe.core import config
from raypipe.core.conf import Conf
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.core.progress import Progress
from raypipe.core.references import Reference
from raypipe.core.textfile import write_json

if TYPE_CHECKING:
    from raypipe.core.progress import Progress
    from raypipe.core.protocols import Adoption, Model
    from raypipe.models.catalog import Catalog
    from raypipe.models.hosts import EndpointAddress
    from raypipe.recipes.recipe import Recipe
    from raypipe.runs.cluster.file import Cluster
    from raypipe.store import Store

Place: TypeAlias = "Store | str | Path | None"
"""A store, or where it lies; None: where the environment says."""
Named: TypeAlias = "Recipe | str | Path"
"""A recipe, or its name or path."""

UNSENT, TAKEN = "unsent_fields.json", "taken_chats.json"
"""Files under the home: what runs learned of servers."""
TAKEN_S = 24 * 3600.0
"""Age of a chat that a server took, in seconds, after which `ask` sends one again: a day. Keys, models and
gateways change between two days of work. One that changes sooner costs one refused chat: then one is sent."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Places that apply where the command line names none."""

    home: Path  # RAYPIPE_HOME: demo data, stores and reports that were given no place
    store: str | None  # RAYPIPE_STORE
    conf: Conf  # RAYPIPE_CONF, ./conf, the installed copy, the checkout of an editable install
    ray: str  # RAY_ADDRESS; "local" (when it is not set) starts a Ray for this run
    auth: str | None  # RAY_AUTH_MODE
    submitted: str | None  # id of the submitted Ray job this runs in, else None
    metadata: Mapping[str, str] = field(default_factory=dict)  # that the Ray job was submitted with
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)  # the environment: endpoints' keys

    def store_to_fill(self, given: str | Path | None) -> str:
        """The store that data is read into: as given, else RAYPIPE_STORE, else `default` under home."""
        return self.place(str(given or self.store or self.stores / "default"), "--store")

    def store_to_use(self, given: str | Path | None) -> str:
        """The store of what was read before: the one to fill; the demo's, while that is all there is."""
        demo = self.stores / "demo"
        only_demo = not (self.stores / "default").exists() and demo.exists()
        return str(demo) if not (given or self.store) and only_demo else self.store_to_fill(given)

    def unsent(self) -> dict[str, list[str]]:
        """Maps each served model to the chat fields that its server refuses. Earlier runs under this home
        recorded them."""
        return _learned(self.home / UNSENT)

    def keep_unsent(self, name: str, fields: Sequence[str]) -> None:
        """Notes that a served model's chats are sent without these fields."""
        _keep(self.home / UNSENT, {**self.unsent(), name: list(fields)})

    def taken_chats(self) -> dict[str, float]:
        """The chats that servers took within `TAKEN_S`: digest of address and body -> seconds since 1970."""
        now = time.time()
        return {key: s for key, s in _learned(self.home / TAKEN).items() if now - TAKEN_S < s <= now}

    def keep_taken_chats(self, taken: Mapping[str, float]) -> None:
        """Notes these, and no others, as `taken_chats` returns them."""
        if taken != self.taken_chats():
            _keep(self.home / TAKEN, taken)

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
        if "://" in path:
            return path
        here = Path(path)  # with `..` a folder would have two names, and be read as two
        return str(here.resolve() if ".." in here.parts else here.absolute())


def _learned(file: Path) -> dict[str, Any]:
    """Reads a file under the home. Raises ConfError for one that is not JSON."""
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as e:
        raise ConfError(f"{file}: expected JSON, found {e}. Delete the file: it is learned again") from e


def _keep(file: Path, tree: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, tree)


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


@dataclass(frozen=True, slots=True)
class Session:
    """The settings that calls share. Each field has the default of the command line."""

    settings: Settings = field(default_factory=from_environment)
    models: str | None = None  # models file whose entries are laid over conf/models.yaml
    graphs: Mapping[str, str] = field(default_factory=dict)  # name -> place; "": all others
    cluster: str = "laptop"  # a name under conf/clusters, or a path
    progress: bool = False  # whether progress is shown on stderr
    llm: str | None = None  # an entry, a folder or URL#MODEL that stands in the place of every generator
    sets: tuple[str, ...] = ()  # STEP[:INTO].FIELD=VALUE: fields of recipes that are read by name
    adopting: str = ""  # address of the store whose adopted models count as others; "": of none

    def over(self, store: Place, fills: bool = False) -> Session:
        """The same, with the models that a store has adopted. `fills` as in `address`."""
        return replace(self, adopting=self.address(store, fills))

    def recipe(self, recipe: Named, data: Sequence[str | Path] = ()) -> Recipe:
        """A recipe by name or path, with the graphs that lie in `data`; a recipe itself, as it is. Raises as
        `load_recipe`."""
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
        # From run to run a file is named by its path; in the working directory of a submitted job, which is a
        # copy at another place each time, by the path there.
        inside = self.settings.submitted is not None and path.resolve().is_relative_to(here)
        file = str(path.resolve().relative_to(here) if inside else path.resolve())
        changed = with_fields(tree, self.sets, where) if self.sets else tree
        try:
            made = from_tree(path.stem, changed, where, resolve)
        except ConfError as e:
            if not self.sets:
                raise
            raise ConfError(f"with {' '.join(f'--set {one}' for one in self.sets)}: {e}") from e
        return replace(made, file=file, sets=self.sets)

    def catalog(self) -> Catalog:
        """The shipped conf/models.yaml, with the entries of your own conf/models.yaml and then of the file
        `models` laid over it: one of the same name replaces the one below it whole; with `llm` in the place
        of every generator."""
        from raypipe.models import catalog

        files = [*self.settings.conf.layers("models.yaml"), *([Path(self.models)] if self.models else [])]
        fetched = self.settings.home / "models"
        read = [catalog.read(config.read_yaml(file), file, fetched=fetched) for file in files]
        whole = functools.reduce(catalog.Catalog.overlaid, read)
        whole = replace(whole, unsent=self.settings.unsent(), adopted=self._adopted())
        if self.llm is None:
            return whole
        return replace(whole, llm=whole.stand_in("--llm", self.llm))

    def _adopted(self) -> Mapping[str, Adoption]:
        """Own identity of each adopted model of the store -> its adoption."""
        from raypipe.store import Store
        from raypipe.store.files import ADOPTED

        store = Store.find(self.adopting) if self.adopting else None
        if store is None or not store.files.names(ADOPTED):
            return {}
        from raypipe.runs.adoption import adoptions

        return {identity: found.adoption for identity, found in adoptions(store).items()}

    def cluster_file(self) -> Cluster:
        """The cluster file, read; its endpoint `llm` gets the address of the session's, with the key that the
        environment has."""
        from raypipe.models.entry import LLM  # what a session reads is imported when it is read
        from raypipe.models.hosts import ServedModel, is_served
        from raypipe.runs.cluster.file import Cluster

        path = self.settings.conf.find("clusters", self.cluster)
        file = config.build(Cluster, config.read_yaml(path), Where(str(path)))
        if self.llm is None or not is_served(self.llm):
            return file
        return file.with_endpoint(LLM, ServedModel.parse(self.llm, "--llm").url, self.settings.keys)

    def shown(self) -> Progress:
        """Progress on stderr, where it is shown."""
        return Progress(sys.stderr, silent=not self.progress)

    def store(self, given: Place) -> Store:
        """A store to read from. Raises StoreError where there is none."""
        from raypipe.store import Store

        return given if isinstance(given, Store) else Store.open(self.settings.store_to_use(given))

    def address(self, given: Place, fills: bool) -> str:
        """Returns where a store lies, made or not. `fills`: data is read into it."""
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


def load_recipe(
    recipe: str | Path,
    models: str | None = None,
    conf: Conf | None = None,
    graphs: Mapping[str, str] = MappingProxyType({}),
    llm: str | None = None,
    sets: Sequence[str] = (),
) -> Recipe:
    """A recipe by name or path, with the prompts, models and graphs that it names.

    `models` is a models file whose entries are laid over conf/models.yaml. `conf` says where names are looked
    up; None: in $RAYPIPE_CONF, ./conf, then the installed copy. `graphs`: graph -> folder, file or address;
    "": all others. `llm`, an entry, a folder or URL#MODEL, stands in the place of every generator. `sets`:
    fields of its steps in place of the file's, each `STEP[:INTO].FIELD=VALUE`. Raises ConfError with file,
    field, what was expected and found, and ModelMissing.
    """
    settings = from_environment()
    used = settings if conf is None else replace(settings, conf=conf)
    return Session(used, models, graphs, llm=llm, sets=tuple(sets)).recipe(recipe)


def require_graphs(recipe: Recipe) -> Recipe:
    """The same recipe. Raises ConfError for a graph, public data or examples whose place is not known, or
    that are not what the recipe was resolved with; DataError for files that are none."""
    for ref in recipe.named(Reference):
        ref.require()
    return recipe


def endpoint_addresses(
    file: Cluster, models: Sequence[Model], keys: Mapping[str, str], batch: bool = False
) -> dict[str, EndpointAddress]:
    """The endpoints of these models, with keys; `batch`: for work that may wait a day. Raises ConfError for a
    key that the environment lacks."""
    from raypipe.models.entry import REMOTE
    from raypipe.models.hosts import EndpointAddress

    wanted = {m.path for m in models if m.loader in REMOTE}
    found = {}
    for name, at in file.endpoints.items():
        if name not in wanted:
            continue
        if at.key_env and not keys.get(at.key_env):
            raise ConfError(
                f"endpoint {name!r}: expected its key in the environment variable {at.key_env}, found none. "
                f"Set it, or remove key_env from the cluster file if the endpoint takes no key"
            )
        found[name] = EndpointAddress(
            at.url,
            keys[at.key_env] if at.key_env else "",
            at.concurrency,
            at.per_minute,
            at.tokens_per_minute,
            at.timeout_s,
            at.tries,
            at.batch if batch else "",
        )
    return found


def swap_steps(
    recipe: Named, swaps: Sequence[str], data: Sequence[str | Path] = (), session: Session | None = None
) -> Recipe:
    """The recipe with some steps of others: each of `swaps` is STEP=RECIPE, such as `rerank=tuned`.

    `data`: where its graphs may lie. Raises ConfError for what is no swap, for a step that one of the recipes
    does not have, and for steps that do not fit together.
    """
    from raypipe.recipes.read_recipe import swapped

    session = session or Session()
    found = session.recipe(recipe, data)
    theirs = replace(session, sets=())  # fields are set in the recipe itself, not in what it borrows from
    for text in swaps:
        step, sign, other = text.partition("=")
        if not (step and sign and other):
            raise ConfError(f"--swap {text!r}: expected STEP=RECIPE, such as rerank=tuned")
        found = swapped(found, step.strip(), theirs.recipe(other.strip(), data))
    return found
