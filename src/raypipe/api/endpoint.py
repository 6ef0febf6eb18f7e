"""Arguments of the endpoint (`ServeArgs`), and the endpoint on Ray Serve (`serve`) or here (`serve_here`).

The client of `serve_here` starts this process and talks to it over stdin and stdout. It gets its tools
immediately, while a thread reads a folder and loads models for minutes. Only the protocol goes to stdout.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from raypipe.api.questions import local_kit
from raypipe.api.results import outside_loop
from raypipe.api.served_models import require_answering, require_same, require_unchanged
from raypipe.api.session import Session, Settings, endpoint_addresses, require_graphs
from raypipe.core import config
from raypipe.core.errors import ConfError, RaypipeError, Unavailable
from raypipe.core.progress import heartbeat
from raypipe.models import load
from raypipe.models.kit import LocalKit
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import from_plain
from raypipe.runs.captured_answers import answer_ids
from raypipe.runs.cluster.capacity import declared_nodes, preflight, sized, startable
from raypipe.runs.cluster.cluster_file import Cluster
from raypipe.runs.pipeline.recipe_tables import lacks_passages, nothing_to_search, searched
from raypipe.runs.release import live_now
from raypipe.serving.access import (
    MEMO_MB,
    ApiKeys,
    CaptureConfig,
    RequestLimits,
    ServerConfig,
    key_filters_in,
    read_key_filters,
)
from raypipe.serving.answerer import Answerer
from raypipe.serving.capture import redaction
from raypipe.serving.http import create_app
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.http.mcp_tools import serve_stdio
from raypipe.serving.release_follower import ReleaseFollower, bounded_memo
from raypipe.store import Store, StoreError
from raypipe.store.fields import fields_now
from raypipe.text.filters import ConditionError

if TYPE_CHECKING:
    from ray.serve import Application


KEYS = "RAYPIPE_KEYS"
KEY_FILTERS = "RAYPIPE_KEY_FILTERS"  # content of a filter file, as a Secret gives it to a pod
UNTIL = "Until then only documents that requests bring are searched"


@dataclass(frozen=True, slots=True)
class ServeArgs:
    """Arguments of the endpoint, named as on the command line."""

    recipe: str = "local"  # a name under conf/recipes, or a path; live: always the current live release
    models: str | None = None  # models file; its entries replace those of conf/models.yaml
    store: str | None = None  # URI
    cluster: str = "laptop"  # a name under conf/clusters, or a path: engine, device and threads of the models
    keys: str | None = None  # file with one key per line, besides the keys in the variable RAYPIPE_KEYS
    auth: Literal["none"] | None = None  # "none": open to all; None: to keys, or without keys to this machine
    page: bool = True  # the web page at /
    gateways: int = 1  # processes that serve HTTP and run the recipe; with two, the loss of one is survived
    log: str | None = None  # file with one line per request; None: stderr of the gateway, which Ray keeps
    graphs: Mapping[str, str] = field(default_factory=dict)  # name -> location; "" -> location of all others
    limits: RequestLimits = field(default_factory=RequestLimits)
    llm: str | None = None  # replaces every generator: an entry, a folder or URL#MODEL
    capture: CaptureConfig | None = None  # which answers are written into the store; None: none
    key_filters: str | None = None  # file of keys with a filter each: they search only a part of the store
    memo_mb: int = MEMO_MB  # MiB of a gateway's memory for cached results of models; 0: no cache
    mcp: bool = False  # also serve the routes as tools for agents, at /mcp

    def __post_init__(self) -> None:
        if self.gateways < 1 or self.memo_mb < 0:
            raise ValueError("expected gateways of at least 1 and memo_mb of at least 0")

    def application(self, settings: Settings) -> Application:
        """Builds the application for Ray Serve. The store may be created later, except for recipe `live`."""
        from raypipe.serving.ray.app import build_application  # Ray takes a second to import

        file, store = self.cluster_file(settings), settings.store_to_use(self.store)
        recipe = self.recipe_to_serve(settings, store)
        at = endpoint_addresses(file, recipe.models(), settings.keys)
        limits = file.engines.limits(file.device) if file.engines else None
        pool, engine_gpus = file.pools["embed"], 0.0
        threads = max(1, int(pool.cpus))
        kit = partial(LocalKit, None, file.backend, file.device, threads, endpoints=at, engine_limits=limits)
        gpus = min(pool.gpus, 1.0) / 2  # embedders and rerankers share one accelerator
        if file.engines is not None and (vllm := [m for m in recipe.models() if m.loader == "vllm"]):
            gpus, engine_gpus = file.engines.answer.gpus / 2, sum(file.engines.needs(m)["GPU"] for m in vllm)
        server = self.server_config(settings.keys)
        return build_application(
            recipe, store, kit, gpus, server, self.follow_live, engine_gpus, self.gateways
        )

    def check(self, settings: Settings) -> None:
        """Checks store, packages, graphs, models and capture, and sends test requests to models at an
        address. Raises StoreError, ModelMissing, ConfError, DataError or Unavailable."""
        store = Store.open(settings.store_to_use(self.store))
        recipe = self.recipe_to_serve(settings, store.uri)
        self.check_models(settings, recipe)
        addresses = endpoint_addresses(self.cluster_file(settings), recipe.models(), settings.keys)
        require_unchanged(store, recipe.models(), addresses)
        if self.capture is not None:
            redaction(self.capture.redact)
            answer_ids(store)  # writes a secret, and raises if the store cannot be written

    def about_store(self, settings: Settings) -> str:
        """Describes the searched store in words. If it cannot be searched, says why and how to mend that."""
        uri = settings.store_to_use(self.store)
        recipe = self.recipe_to_serve(settings, uri)
        try:
            if lacks_passages(recipe, Store.find(uri)):
                return f"{nothing_to_search(recipe, uri)}. {UNTIL}"
            opened = Store.open(uri)
            searched(opened, recipe)
            lines = [f"searching {uri}: {opened.count('sources'):,} sources"]
            if filters := self.server_config(settings.keys).key_filters:
                fields = fields_now(opened)
            for f in filters:
                try:
                    fields.check(f.filters.where)
                    why = "" if fields.within(f.filters).ids else "no source meets it"
                except ConditionError as e:
                    why = str(e)
                lines += [f"a key's filter finds nothing: filters.{f.name}: {why}"] if why else []
            return "\n".join(lines)
        except (StoreError, Unavailable) as e:
            return f"{e}. {UNTIL}"

    def check_models(self, settings: Settings, recipe: Recipe) -> None:
        """Checks packages, graphs, the cluster file, models and their servers. Raises as `check`."""
        if self.mcp and importlib.util.find_spec("mcp") is None:
            raise ConfError("--mcp: the package mcp is not installed: pip install 'raypipe[mcp]'")
        models = require_graphs(recipe).models()
        for model in models:
            load.present(model)
        cluster = self.cluster_file(settings)
        startable(cluster, models)
        require_answering(recipe.chats(), endpoint_addresses(cluster, models, settings.keys), settings)

    def recipe_to_serve(self, settings: Settings, store: str) -> Recipe:
        """Resolves the recipe that answers. For `live` this is the recipe of the live release in `store`."""
        if self.follow_live:
            live = from_plain(live_now(Store.open(store)).recipe)
            require_same(live.models(), self.session(settings))
            return live
        return require_graphs(self.session(settings).over(store).recipe(self.recipe))

    def session(self, settings: Settings) -> Session:
        """Returns the session of these arguments: models file, graphs, cluster file and `llm`."""
        return Session(settings, self.models, self.graphs, self.cluster, llm=self.llm)

    @property
    def follow_live(self) -> bool:
        """True if the recipe is `live`: the endpoint then switches to each newly promoted release."""
        return self.recipe == "live"

    def server_config(self, environ: Mapping[str, str]) -> ServerConfig:
        """Builds the HTTP server's options. Raises ConfError for bad keys, and for keys with `auth` none."""
        given = [k.strip() for k in environ.get(KEYS, "").split(",") if k.strip()]
        if (path := self.keys) is not None:
            try:
                lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
            except (OSError, UnicodeDecodeError) as e:
                raise ConfError(f"keys: {path} cannot be read: {getattr(e, 'strerror', None) or e}") from e
            if not (written := [line for line in lines if line and not line.startswith("#")]):
                raise ConfError(f"keys: expected a key a line in {path}, found none")
            given += written
        filters = () if self.key_filters is None else read_key_filters(Path(self.key_filters))
        if self.key_filters is None and (text := environ.get(KEY_FILTERS, "").strip()):
            filters = key_filters_in(config.read_value(text, f"${KEY_FILTERS}"), f"${KEY_FILTERS}")
        if self.auth == "none" and (given or filters):
            what = "keys" if given else "key filters"
            raise ConfError(f"auth none and {what}: expected one of them, found both")
        keys = ApiKeys(open=True) if self.auth == "none" else ApiKeys.of(given)
        return ServerConfig(
            keys, self.limits, self.page, self.log, self.capture, self.memo_mb, filters, self.mcp
        )

    def cluster_file(self, settings: Settings) -> Cluster:
        cluster = self.session(settings).cluster_file()
        return sized(cluster, (), declared_nodes(cluster))


def check_address(endpoint: ServeArgs, host: str, port: int, settings: Settings) -> None:
    """Raises ConfError if the port cannot be bound. Without key filters, also raises as `check_host`."""
    server = endpoint.server_config(settings.keys)
    if not server.key_filters:
        check_host(host, server.keys)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            # Servers set this option too: a port is free as soon as its server ends.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as e:
        raise ConfError(f"--host {host} --port {port}: cannot listen there: {e}. Choose another port") from e


def check_host(host: str, keys: ApiKeys) -> None:
    """Raises ConfError if other machines can reach `host`, but there are no keys and no `--auth none`."""
    alone = host == "localhost"
    with suppress(ValueError):  # a name, not an address
        alone = alone or ipaddress.ip_address(host).is_loopback
    if not (alone or keys.digests or keys.open):
        what = f"--host {host}: other machines reach it, but there are no keys"
        raise ConfError(f"{what}. Give --keys FILE or ${KEYS}, or --auth none to answer without a key")


@outside_loop
def serve(
    endpoint: ServeArgs,
    host: str,
    port: int,
    say: Callable[[str], None],
    settings: Settings,
    follow: Callable[[Callable[[], None]], object] = lambda reopen: threading.Event().wait(),
) -> None:
    """Serves an endpoint on this machine until `follow` returns or the process is interrupted.

    `say` is called with lines for a person. `follow` is called as soon as the endpoint answers; by default it
    waits forever. `follow` gets a function that makes all gateways (HTTP processes) search the newest tables.
    Raises ClusterTooSmall, and the errors of `check_address` and `ServeArgs.check`.
    """
    check_address(endpoint, host, port, settings)
    endpoint.check(settings)  # Serve never stops retrying a replica that cannot start
    name = f"serve-{time.strftime('%Y-%m-%d-%H%M%S')}-{port}.jsonl"
    log = Path(endpoint.log or settings.home / "logs" / name)
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"starting; each request is logged in {log}")
    say(endpoint.about_store(settings))
    with ExitStack() as ends:
        with heartbeat(say, "starting Ray") as now:
            import ray  # its import takes a second

            from raypipe.runs.cluster import connection
            from raypipe.serving.ray.app import reopen, start, stop

            application = replace(endpoint, log=str(log)).application(settings)
            # A Serve that runs in another Ray may listen on other addresses.
            if not ray.is_initialized():  # at exit a process waits half a second for Ray's output
                ends.callback(ray.shutdown)
            connection.connect("local", imports="ray.serve._private.replica")
            preflight({"embed": endpoint.cluster_file(settings).pools["embed"]}, connection.nodes())
            now("loading models")
            ends.callback(stop)
            start(application, host, port)
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"  # IPv6 in brackets
        tools = f", tools {url}/mcp" * endpoint.mcp
        say(f"answering on {url}/v1/answer, page {url}/{tools}; Ctrl-C ends it")
        ends.callback(say, "stopping: requests in flight have 30 s to end")
        follow(reopen)


OPEN_WAIT_S = 30.0  # seconds that a call waits for the opening; clients give up after a minute or more
WARM_S = 60.0  # most seconds for the questions that are answered before the first call, to load models

Router = Answerer | ReleaseFollower


class OpeningRouter:
    """Router that a client can use before the endpoint's store and models are open. It makes calls wait."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[Router] = asyncio.get_running_loop().create_future()

    async def current(self) -> Answerer:
        """Waits for the answerer, and returns it. Raises RequestRefused after OPEN_WAIT_S seconds, or if
        opening failed, because clients show this error, but hide the output of the process."""
        await asyncio.wait({self.opened}, timeout=OPEN_WAIT_S)
        if not self.opened.done():
            wait = "Documents are still read, and models loaded: minutes the first time. Ask again later."
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, wait)
        return await self.opened.result().current()


@outside_loop
def serve_here(
    endpoint: ServeArgs,
    say: Callable[[str], None],
    settings: Settings,
    read: Callable[[], str] | None = None,
    follow: Callable[[Callable[[], None]], object] = lambda reopen: None,
) -> None:
    """Serves the tools of an endpoint over stdin and stdout, until the client closes stdin.

    `read` updates the store and returns its URI; None means that the store is searched as it is. `say` is as
    in `serve`. `follow` is called in a thread once the endpoint answers, except for recipe `live`. If opening
    fails, `say` and each call get the error. Without `read`, raises the errors of `ServeArgs.check`.
    """
    if read is None:
        endpoint.check(settings)
        say(endpoint.about_store(settings))

    @outside_loop
    def opened() -> tuple[Router, LocalKit]:
        uri, memo = read() if read else settings.store_to_use(endpoint.store), endpoint.memo_mb << 20
        recipe = endpoint.recipe_to_serve(settings, uri)
        kit = local_kit(endpoint.session(settings), recipe)
        if endpoint.follow_live:
            return ReleaseFollower(kit, uri, memo), kit
        return Answerer(recipe, kit, uri, bounded_memo(memo), degrades=True), kit

    async def serving() -> None:
        loop, router, kits = asyncio.get_running_loop(), OpeningRouter(), AsyncExitStack()

        async def warm(answers: Router, kit: LocalKit) -> None:
            kits.push_async_callback(kit.close)
            with suppress(Exception):  # a later call raises and reports the same error
                async with asyncio.timeout(WARM_S):
                    await (await answers.current()).warm(WARM_S)
            router.opened.set_result(answers)

        def open_and_follow() -> None:
            try:
                answers, kit = opened()
            except Exception as e:
                say(str(e) if isinstance(e, RaypipeError) else traceback.format_exc())
                why = RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, str(e))
                loop.call_soon_threadsafe(router.opened.set_exception, why)
                return
            with suppress(CancelledError):  # the client has disconnected
                asyncio.run_coroutine_threadsafe(warm(answers, kit), loop).result()
                if isinstance(answers, Answerer):
                    follow(lambda: asyncio.run_coroutine_threadsafe(answers.reopen(), loop).result())

        threading.Thread(target=open_and_follow, daemon=True).start()  # it ends with the process
        async with kits:
            await serve_stdio(create_app(router, ServerConfig(limits=endpoint.limits, page=False)))

    asyncio.run(serving())
