"""The Kubernetes manifests: against the schemas of Kubernetes and KubeRay, the rules of k8s_pods.py,
k8s_network.py and k8s_policy.py, and what they start here. Not on a live cluster: none can be had."""

import copy
import gzip
import json
import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import jsonschema
import k8s_network  # noqa: F401  # its rules
import k8s_pods  # noqa: F401  # its rules
import k8s_policy  # noqa: F401  # its rules
import pytest
import yaml
from checkout import ROOT
from k8s_lines import flipped, free, leaves, problems, render, strict
from k8s_trees import RULES, cluster_of, containers, gpu_groups, of_kind, worker_groups
from packaging.requirements import Requirement
from serve_config import builder, unknown

from raypipe.api.cli.main import parser
from raypipe.api.endpoint import ServeArgs
from raypipe.core import config as conf
from raypipe.core.config import Where
from raypipe.readers.download import CRAG
from raypipe.runs.cluster import capacity
from raypipe.runs.cluster.cluster_file import Cluster
from raypipe.serving.access import ServerConfig

pytestmark = pytest.mark.slow

K8S = ROOT / "k8s"
IN_IMAGE = "/opt/raypipe/"  # where the checkout lies
KEY = "what-the-Secret-holds"
RAYS = ("RayCluster", "RayJob", "RayService")
WATCHING = ("PodMonitor", "PrometheusRule")  # the Prometheus operator's; their schemas are not in the data
OVERLAYS = ("base", "overlays/dev", "overlays/gpu", "overlays/ha")
DOWNLOADED = {f"/data/crag/{file.name}" for files in CRAG.values() for file in files}


@pytest.fixture(scope="module")
def rendered():
    """Overlay -> trees, each rendered once."""
    return {name: render(K8S / name) for name in OVERLAYS}


@pytest.fixture(params=OVERLAYS)
def trees(request, rendered):
    return rendered[request.param]


@pytest.fixture(scope="module")
def validators(data):
    """By kind, for the version that a manifest names."""
    found = {}
    for kind in RAYS:
        with gzip.open(data / "kuberay" / "crds" / f"ray.io_{kind.lower()}s.yaml.gz") as file:
            crd = yaml.load(file, yaml.CSafeLoader)
        [version] = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
        found[kind] = jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))
    return found


def test_rays_manifests_fit_kuberays_schemas(trees, validators):
    found = of_kind(trees, *RAYS)
    assert {t["kind"] for t in found} == set(RAYS)
    for tree in found:
        assert tree["apiVersion"] == "ray.io/v1"
        assert problems(validators[tree["kind"]], tree) == []


@pytest.mark.parametrize("kind", RAYS)
def test_the_check_notices_a_typo_and_a_wrong_type_at_any_depth(kind, rendered, validators):
    for change in (
        lambda t: t["spec"].update(entrypiont="x"),
        lambda t: cluster_of(t)["headGroupSpec"].update(rayStartParam={}),
        lambda t: containers([t])[0].update(imagePolicy="Always"),
        lambda t: containers([t])[-1]["resources"].update(limit={"cpu": "1"}),
        lambda t: cluster_of(t)["workerGroupSpecs"][0].update(replicas="two"),
        lambda t: cluster_of(t)["authOptions"].update(mode="none"),
    ):
        tree = copy.deepcopy(of_kind(rendered["base"], kind)[0])
        change(tree)
        assert len(problems(validators[kind], tree)) == 1


def test_other_manifests_fit_the_schemas_of_kubernetes(trees):
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed here"
    )
    found = [t for t in trees if t["kind"] not in (*RAYS, *WATCHING)]
    assert len(found) >= 6
    for tree in found:
        kubernetes.validate(tree, "1.32", strict=True)
        wrong = {**tree, "spce": {}}
        with pytest.raises(kubernetes.ValidationError):
            kubernetes.validate(wrong, "1.32", strict=True)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_holds_and_notices_each_way_to_break_it(name, rendered):
    rule, broken = RULES[name], 0
    for overlay, trees in rendered.items():
        if rule.overlays and Path(overlay).name not in rule.overlays:
            continue
        assert list(rule.broken(trees)) == [], overlay
        for n, wrong in enumerate(rule.flipped(trees)):
            assert list(rule.broken(wrong)), f"{overlay}: break {n} of {name} goes unnoticed"
            broken += 1
    assert broken >= len(rule.breaks)


def test_ray_is_the_pinned_one_everywhere(trees):
    [pinned] = re.findall(r"^ray==(\S+)", (ROOT / "requirements/cpu.txt").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [allowed] = [r.specifier for r in map(Requirement, project["dependencies"]) if r.name == "ray"]
    assert pinned in allowed
    assert {cluster_of(t)["rayVersion"] for t in of_kind(trees, *RAYS)} == {pinned}
    images = {c["image"].removesuffix("-gpu") for c in containers(trees)}
    assert images == {f"raypipe:{project['version']}-ray{pinned}"}


def entrypoints(trees):
    """(the words that are run, the tree that runs them)."""
    for tree in of_kind(trees, "RayJob"):
        yield shlex.split(tree["spec"]["entrypoint"]), tree
    [cluster] = of_kind(trees, "RayCluster")
    for tree in of_kind(trees, "CronJob"):
        [container] = containers([tree])
        assert container["command"] == ["ray", "job", "submit"]
        at = container["args"].index("--")
        address, metadata = submitted(container["args"][:at])
        assert address == f"http://{cluster['metadata']['name']}-head-svc:8265" and json.loads(metadata)
        [token] = [e for e in container["env"] if e["name"] == "RAY_AUTH_TOKEN"]
        name = cluster["spec"]["authOptions"]["secretName"]
        assert token["valueFrom"]["secretKeyRef"] == {"name": name, "key": "auth_token"}
        yield container["args"][at + 1 :], cluster


def submitted(words):
    """The address and metadata that `ray job submit` reads from its options. Fails for one it has not."""
    from ray.dashboard.modules.job.cli import submit

    context = submit.make_context("submit", [*words, "--", "true"])
    return context.params["address"], context.params["metadata_json"]


def test_the_entrypoints_are_here_their_flags_parse_and_their_paths_are_on_the_volume(trees):
    found = list(entrypoints(trees))
    assert len(found) == 3
    for (python, script, *words), _ in found:
        file = ROOT / script.removeprefix(IN_IMAGE)
        assert python == "python" and script.startswith(IN_IMAGE) and file.is_file()
        args = parser().parse_args([*job(file), *words])
        assert words[0] == args.recipe, "said, though it is what the command would take"
        for name in ("recipe", "cluster"):
            assert (ROOT / "conf" / f"{name}s" / f"{getattr(args, name)}.yaml").is_file()
        assert args.data and any(w.startswith("--cluster") for w in words)
        assert all(str(p).startswith("/data/") for p in (args.store, args.out))
        assert set(map(str, args.data)) <= DOWNLOADED, "`raypipe download crag --task N /data/crag` writes it"


def job(script):
    """The command that a script of jobs/ runs, with its first options."""
    return {"reprocess": ("eval", "--changes")}.get(script.stem, (script.stem,))


def cluster_file(name):
    path = ROOT / "conf" / "clusters" / f"{name}.yaml"
    return conf.build(Cluster, conf.read_yaml(path), Where(str(path)))


def most(tree):
    """The workers that a manifest may come to, as Ray would see them."""
    found = []
    for g in worker_groups([tree]):
        [c] = g["template"]["spec"]["containers"]
        limits = c["resources"]["limits"]
        node = {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0))}
        found += [node] * g["maxReplicas"]
    return found


def test_the_pools_of_a_jobs_cluster_file_fit_its_workers(trees):
    for words, tree in entrypoints(trees):
        args = parser().parse_args([*job(Path(words[1])), *words[2:]])
        nodes, written = most(tree), cluster_file(args.cluster)
        capacity.preflight(capacity.sized(written, (), nodes).pools, nodes)
        if written.grows:
            here = sorted((n["CPU"], n["GPU"]) for n in nodes)
            assert sorted((n["CPU"], n["GPU"]) for n in capacity.declared_nodes(written)) == here
            assert cluster_of(tree).get("enableInTreeAutoscaling")


@pytest.fixture(scope="module")
def refused(validators):
    """Whether a schema has something against a tree."""
    kubernetes = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed here"
    )

    def refused(tree):
        if tree["kind"] in RAYS:
            return next(validators[tree["kind"]].iter_errors(tree), None) is not None
        if tree["kind"] in WATCHING:
            return False
        try:
            kubernetes.validate(tree, "1.32", strict=True)
        except kubernetes.ValidationError:
            return True
        return False

    return refused


def noticed(overlay, trees, tree, refused):
    """Whether a rule, a schema or a test has something against the trees, of which `tree` was changed."""
    rules = [r for r in RULES.values() if not r.overlays or Path(overlay).name in r.overlays]
    try:
        if any(next(rule.broken(trees), None) is not None for rule in rules) or refused(tree):
            return True
        test_ray_is_the_pinned_one_everywhere(trees)
        test_the_entrypoints_are_here_their_flags_parse_and_their_paths_are_on_the_volume(trees)
        test_the_pools_of_a_jobs_cluster_file_fit_its_workers(trees)
    except (Exception, SystemExit):  # what was to be looked at is gone, or is another thing
        return True
    return False


@pytest.mark.drill
def test_every_line_of_a_manifest_is_held_or_free(rendered, refused):
    seen, loose = set(), set()
    for overlay, trees in rendered.items():
        assert not any(noticed(overlay, trees, tree, refused) for tree in trees), overlay
        for i, tree in enumerate(trees):
            for path, value in leaves(tree):
                line = (tree["kind"], path, repr(value))  # twins of a kind are held alike
                if line in seen or free(tree["kind"], path):
                    continue
                seen.add(line)
                for changed in flipped(tree, path):
                    if not noticed(overlay, [*trees[:i], changed, *trees[i + 1 :]], changed, refused):
                        loose.add((overlay, tree["kind"], ".".join(map(str, path))))
    assert sorted(loose) == []
    assert len(seen) > 400


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")
def test_the_service_is_the_application_that_the_builder_makes_and_fits_its_workers(trees, monkeypatch):
    from ray.serve._private.build_app import build_app
    from ray.serve.schema import ServeDeploySchema

    [service] = of_kind(trees, "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    assert list(unknown(ServeDeploySchema, config)) == []
    [app] = config["applications"]
    assert app["import_path"] == "serve.app:build"
    env = {e["name"]: e.get("value", KEY) for c in containers([service]) for e in c["env"]}
    assert (ROOT / Path(env["PYTHONPATH"] + "/").relative_to(IN_IMAGE) / "serve/app.py").is_file()
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / Path(env["RAYPIPE_CONF"]).relative_to(IN_IMAGE)))
    monkeypatch.setenv("RAYPIPE_KEYS", env["RAYPIPE_KEYS"])
    built = build_app(builder()(app["args"]), name="raypipe")
    [server] = [arg for d in built.deployments for arg in d.init_args if isinstance(arg, ServerConfig)]
    assert server.keys.accepts(KEY) and not server.keys.open
    deployments = app["deployments"]
    assert {d["name"] for d in deployments} == {d.name for d in built.deployments}
    have = most(service)
    for kind, option in (("CPU", "num_cpus"), ("GPU", "num_gpus")):
        needed = sum(d["num_replicas"] * d["ray_actor_options"].get(option, 0) for d in deployments)
        assert needed <= sum(node.get(kind, 0.0) for node in have)
    assert bool(gpu_groups([service])) == (cluster_file(app["args"]["cluster"]).device == "cuda")


def test_the_overlay_live_follows_releases_and_differs_from_ha_in_its_arguments_alone(rendered):
    live = render(K8S / "overlays/live")
    [mine], [theirs] = (of_kind(trees, "RayService") for trees in (live, rendered["overlays/ha"]))
    config, ha = (yaml.safe_load(t["spec"].pop("serveConfigV2")) for t in copy.deepcopy([mine, theirs]))
    [app], [before] = config["applications"], ha["applications"]
    args = conf.build(ServeArgs, app["args"], Where("args"))
    assert args.follow_live and args.capture.rate == 0.1 and args.capture.retention_days == 7
    assert {**app, "args": 0} == {**before, "args": 0}
    others = [
        [{**t, "spec": {**t.get("spec", {}), "serveConfigV2": 0}} for t in some]
        for some in (live, rendered["overlays/ha"])
    ]
    assert others[0] == others[1]


def test_the_secret_of_the_docs_makes_filters_of_keys():
    text = (ROOT / "docs/operations.md").read_text()
    file = textwrap.dedent(re.search(r"# keys\.yaml\n((?:    .*\n)+)", text).group(1))
    keys = iter(f"a-key-of-{n}-with-16-characters" for n in range(9))
    given = re.sub(r"KEY\d", lambda _: next(keys), file)
    server = ServeArgs().server_config({"RAYPIPE_KEY_FILTERS": given, "RAYPIPE_KEYS": KEY})
    assert [(f.name, f.filters.hosts, len(f.keys.digests)) for f in server.key_filters] == [
        ("acme", ("acme.example",), 2),
        ("blue", ("blue.example",), 1),
    ]


def test_every_file_is_named_by_a_kustomization():
    for folder in {f.parent for f in K8S.rglob("kustomization.yaml")}:
        text = (folder / "kustomization.yaml").read_text()
        for file in folder.iterdir():
            if file.is_file() and file.name != "kustomization.yaml":
                assert file.name in text, f"{file} is rendered nowhere"


def exported():
    """What Ray's own dashboards read, so what Ray exports, and what the endpoint counts: names of metrics,
    without `_bucket` and such. Ray puts `_total` behind a counter's name."""
    import ray.dashboard.modules.metrics.dashboards as dashboards

    text = "".join(p.read_text() for p in Path(dashboards.__file__).parent.glob("*.py"))
    own = (ROOT / "src/raypipe/serving/ray/gateway.py").read_text()
    text += " ".join(
        f"ray_{name} ray_{name}_total" for name in re.findall(r'Counter\(\s*"(raypipe_[a-z_]+)"', own)
    )
    text += " ".join(f" ray_{name}" for name in re.findall(r'"(raypipe_[a-z_]+)"', own))
    return {re.sub("_(bucket|sum|count)$", "", m) for m in re.findall(r"\bray_[a-z_0-9]+", text)} | {
        "kube_job_status_failed",  # of kube-state-metrics
        "kubelet_volume_stats_available_bytes",
        "kubelet_volume_stats_capacity_bytes",
    }


def test_every_metric_that_is_watched_is_one_that_ray_exports(rendered):
    known = exported()
    for overlay in ("overlays/gpu", "overlays/ha"):
        [rules] = of_kind(rendered[overlay], "PrometheusRule")
        [shown] = of_kind(rendered[overlay], "ConfigMap")
        expressions = [r["expr"] for g in rules["spec"]["groups"] for r in g["rules"]]
        panels = json.loads(shown["data"]["dashboard.json"])["panels"]
        expressions += [t["expr"] for p in panels for t in p["targets"]]
        assert all(p["title"] and p["fieldConfig"]["defaults"]["unit"] for p in panels)
        assert len(expressions) >= 19
        for expression in expressions:
            names = {
                re.sub("_(bucket|sum|count)$", "", m)
                for m in re.findall(r"\b(?:ray|kube|kubelet)_[a-z_0-9]+", expression)
            }
            assert names and names <= known, names - known


def test_every_alert_has_its_place_in_the_runbook(rendered):
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs/operations.md").read_text(), re.M)
    anchors = {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings}
    [rules] = of_kind(rendered["overlays/ha"], "PrometheusRule")
    for alert in (r for g in rules["spec"]["groups"] for r in g["rules"]):
        file, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert file == "docs/operations.md" and anchor in anchors, alert["alert"]
