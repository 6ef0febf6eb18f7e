"""The Kubernetes manifests against KubeRay's own schemas and against what they start here."""

import copy
import gzip
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from serve_config import builder, unknown

from raypipe.cli import parser

ROOT = Path(__file__).parents[1]
BASE = ROOT / "k8s" / "base"
IN_IMAGE = "/opt/raypipe/"  # where the checkout lies
KUSTOMIZATION = yaml.safe_load((BASE / "kustomization.yaml").read_text())
MANIFESTS = {
    tree["kind"]: tree
    for f in KUSTOMIZATION["resources"]
    for tree in [yaml.safe_load((BASE / f).read_text())]
}
RAYS = ["RayJob", "RayService"]


def cluster(tree):
    """The RayCluster that a manifest starts."""
    return tree["spec"].get("rayClusterSpec") or tree["spec"]["rayClusterConfig"]


def groups(tree):
    return [cluster(tree)["headGroupSpec"], *cluster(tree)["workerGroupSpecs"]]


def containers(tree):
    return [c for g in groups(tree) for c in g["template"]["spec"]["containers"]]


def strict(schema):
    """A CRD's schema as the API server applies it, but with unknown fields refused instead of dropped."""
    schema = dict(schema)
    for key in ("properties", "patternProperties"):
        if key in schema:
            schema[key] = {name: strict(inner) for name, inner in schema[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = strict(schema[key])
    if schema.get("x-kubernetes-int-or-string"):
        schema = {"type": ["integer", "string"]}
    keeps = schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and "additionalProperties" not in schema and not keeps:
        schema["additionalProperties"] = False
    return schema


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


def problems(validator, tree):
    return sorted(f"{e.json_path}: {e.message}" for e in validator.iter_errors(tree))


@pytest.mark.parametrize("kind", RAYS)
def test_a_manifest_fits_the_schema_of_its_kind(kind, validators):
    tree = MANIFESTS[kind]
    assert tree["apiVersion"] == "ray.io/v1"
    assert problems(validators[kind], tree) == []


@pytest.mark.parametrize("kind", RAYS)
def test_the_check_notices_a_typo_and_a_wrong_type_at_any_depth(kind, validators):
    for change in (
        lambda t: t["spec"].update(entrypiont="x"),
        lambda t: cluster(t)["headGroupSpec"].update(rayStartParam={}),
        lambda t: containers(t)[0].update(imagePolicy="Always"),
        lambda t: containers(t)[-1]["resources"].update(limit={"cpu": "1"}),
        lambda t: cluster(t)["workerGroupSpecs"][0].update(replicas="two"),
        lambda t: cluster(t)["authOptions"].update(mode="none"),
    ):
        tree = copy.deepcopy(MANIFESTS[kind])
        change(tree)
        assert len(problems(validators[kind], tree)) == 1


@pytest.mark.parametrize("kind", RAYS)
def test_names_are_short_enough_for_the_names_that_kuberay_makes_of_them(kind):
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", MANIFESTS[kind]["metadata"]["name"])
    assert len(MANIFESTS[kind]["metadata"]["name"]) <= 47


@pytest.mark.parametrize("kind", RAYS)
def test_ray_is_the_pinned_one_everywhere(kind):
    [pinned] = re.findall(r"^ray==(\S+)", (ROOT / "requirements/cpu.txt").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ray[data,serve]>={pinned.rpartition('.')[0]}" in str(project["dependencies"])
    assert cluster(MANIFESTS[kind])["rayVersion"] == pinned
    assert {c["image"] for c in containers(MANIFESTS[kind])} == {f"raypipe:{project['version']}-ray{pinned}"}


@pytest.mark.parametrize("kind", RAYS)
def test_a_cluster_asks_for_a_token_and_its_head_takes_no_work(kind):
    tree = cluster(MANIFESTS[kind])
    assert tree["authOptions"] == {"mode": "token"}
    assert tree["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert all(c["resources"]["requests"] == c["resources"]["limits"] for c in containers(MANIFESTS[kind]))
    secrets = re.compile("token|key|secret|password", re.I)
    assert not any(secrets.search(e["name"]) for c in containers(MANIFESTS[kind]) for e in c["env"])


@pytest.mark.parametrize("kind", RAYS)
def test_every_container_has_the_volume_that_the_paths_are_on(kind):
    claim = MANIFESTS["PersistentVolumeClaim"]["metadata"]["name"]
    for group in groups(MANIFESTS[kind]):
        pod = group["template"]["spec"]
        [volume] = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        for container in pod["containers"]:
            assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/data"}]


def test_the_jobs_entrypoint_is_here_and_its_flags_parse():
    spec = MANIFESTS["RayJob"]["spec"]
    python, script, *words = shlex.split(spec["entrypoint"])
    file = ROOT / script.removeprefix(IN_IMAGE)
    assert python == "python" and script.startswith(IN_IMAGE) and file.is_file()
    args = parser().parse_args([file.stem, *words])
    for name in ("recipe", "cluster"):
        assert (ROOT / "conf" / f"{name}s" / f"{getattr(args, name)}.yaml").is_file()
    assert all(str(p).startswith("/data/") for p in (*args.data, args.store, args.out))
    assert spec["shutdownAfterJobFinishes"] and spec["ttlSecondsAfterFinished"] > 0


def cpus(tree):
    """CPUs of all workers."""
    return sum(
        g["replicas"] * int(c["resources"]["limits"]["cpu"])
        for g in cluster(tree)["workerGroupSpecs"]
        for c in g["template"]["spec"]["containers"]
    )


def test_the_jobs_pools_fit_its_workers():
    args = parser().parse_args(["eval", *shlex.split(MANIFESTS["RayJob"]["spec"]["entrypoint"])[2:]])
    pools = yaml.safe_load((ROOT / "conf/clusters" / f"{args.cluster}.yaml").read_text())["pools"]
    assert max(p["actors"] * p["cpus"] for p in pools.values()) <= cpus(MANIFESTS["RayJob"])


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")
def test_the_service_is_the_application_that_the_builder_makes_and_fits_its_workers(monkeypatch):
    from ray.serve._private.build_app import build_app
    from ray.serve.schema import ServeDeploySchema

    config = yaml.safe_load(MANIFESTS["RayService"]["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    assert list(unknown(ServeDeploySchema, config)) == []
    [app] = config["applications"]
    assert app["import_path"] == "serve.app:build"
    env = {e["name"]: e["value"] for c in containers(MANIFESTS["RayService"]) for e in c["env"]}
    assert (ROOT / Path(env["PYTHONPATH"] + "/").relative_to(IN_IMAGE) / "serve/app.py").is_file()
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / Path(env["RAYPIPE_CONF"]).relative_to(IN_IMAGE)))
    built = build_app(builder()(app["args"]), name="raypipe")
    deployments = app["deployments"]
    assert {d["name"] for d in deployments} == {d.name for d in built.deployments}
    needed = sum(d["num_replicas"] * d["ray_actor_options"]["num_cpus"] for d in deployments)
    assert needed <= cpus(MANIFESTS["RayService"])


def test_the_kustomization_names_every_manifest():
    files = {f.name for f in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(KUSTOMIZATION["resources"]) == files


def test_kustomize_renders_it(tmp_path):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed here")
    command = ["kubectl", "kustomize", str(BASE)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    rendered = {t["kind"]: t for t in yaml.safe_load_all(done.stdout)}
    assert set(rendered) == set(MANIFESTS)
    for kind, tree in rendered.items():
        assert tree["metadata"].pop("labels") == {"app.kubernetes.io/name": "raypipe"}
        assert tree["spec"] == MANIFESTS[kind]["spec"]
