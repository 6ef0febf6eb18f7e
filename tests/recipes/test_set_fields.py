"""`--set` changes one field of one step, and its digest; a name that fits no step or several is refused."""

from pathlib import Path

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import Session, from_environment, load_recipe
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.recipes.read_recipe import read_points
from raypipe.recipes.serialize import from_plain, to_plain

CONF = Conf((ROOT / "conf",))
FAKES = str(SUPPORT / "fakes.yaml")


def stages(*sets, recipe=FAKES):
    made = load_recipe(recipe, str(SUPPORT / "fake_models.yaml"), CONF, sets=sets)
    return {s.name: s.step for s in (*made.corpus, *made.question)}


def test_a_field_that_is_set_differs_and_no_other_and_the_digest_says_so():
    before, after = stages(), stages("split.parent_chars=900")
    assert after["split"].parent_chars == 900
    assert {n for n in before if before[n] != after[n]} == {"split"}
    whole, changed = (load_recipe(FAKES, None, CONF, sets=s) for s in ((), ("split.parent_chars=900",)))
    same = load_recipe(FAKES, None, CONF, sets=["split.parent_chars=700"])
    assert whole.digest() != changed.digest() and whole.digest() == same.digest()
    assert (changed.title, changed.name) == ("fakes (split.parent_chars=900)", "fakes")


def test_what_is_set_equals_a_file_that_says_it(tmp_path):
    text = Path(FAKES).read_text().replace("top: 10}", "top: 7}")
    (tmp_path / "made.yaml").write_text(text)
    assert load_recipe(str(tmp_path / "made.yaml"), None, CONF).digest() == (
        load_recipe(FAKES, None, CONF, sets=["rerank.top=7"]).digest()
    )


@pytest.mark.parametrize(
    ("setting", "step", "read"),
    [
        ("fuse.weights={dense: 1.0, bm25: 3.0}", "fuse", lambda s: dict(s.weights)["bm25"]),
        ("fuse.weights.bm25=3.0", "fuse", lambda s: dict(s.weights)["bm25"]),
    ],
)
def test_a_value_is_yaml_and_a_key_of_a_mapping_can_be_set_alone(setting, step, read):
    made = stages(setting)[step]
    assert read(made) == 3.0 and dict(made.weights)["dense"] == 1.0


def test_a_gate_a_prompt_and_a_model_can_be_set():
    weknow = stages(recipe="weknow")
    [name] = [n for n, s in weknow.items() if n.startswith("generate") and n.endswith(":web")][:1]
    changed = stages(f"{name}.max_tokens=9", recipe="weknow")
    assert changed[name].max_tokens == 9 != weknow[name].max_tokens
    assert stages("rerank.model=overlap-reranker", recipe="local")["rerank"].model.loader == "overlap"


def test_the_place_of_one_of_several_steps_is_its_into():
    local = stages("fuse:final.top=7", "fuse:fuse.top=30", recipe="local")
    assert (local["fuse"].top, local["fuse:final"].top) == (30, 7)


WRONG = [
    (["split"], "expected STEP.FIELD=VALUE"),
    (["split.child_chars"], "expected STEP.FIELD=VALUE"),
    (["split.child_chars="], "expected a value after `=`"),
    (["split.child_chars=[1"], "is not valid YAML"),
    (["splitt.child_chars=5"], "no step 'splitt' in", "did you mean 'split'?"),
    (["rerank.topp=5"], "rerank has no field 'topp'; did you mean 'top'?"),
    (["rerank.size=5"], "rerank has no field 'size'; known: candidates, into, ", ", when"),
    (["rerank.top.x=5"], "top of rerank is a whole number (10), which has no 'x'; expected top=VALUE"),
    (["rerank.top=five"], "with --set rerank.top=five: ", "rerank.top: expected a whole number, found text"),
    (["rerank.top=5", "rerank.top=6"], "'rerank.top=5' sets the same field"),
    (["fuse.weights={nothing: 1.0}"], "fuse reads hits.nothing, which no earlier step writes"),
    (["rerank.model=nothing"], "with --set rerank.model=nothing: ", "no model named 'nothing'"),
]


@pytest.mark.parametrize(("sets", "said"), [(w[0], w[1:]) for w in WRONG])
def test_each_mistake_is_named(sets, said):
    with pytest.raises(ConfError) as caught:
        stages(*sets)
    assert all(part in str(caught.value) for part in said), caught.value


def test_a_name_that_fits_two_steps_is_refused_with_both(tmp_path):
    with pytest.raises(ConfError, match=r"'fuse' fits 2 steps of .*local.yaml: fuse:fuse, fuse:final\."):
        stages("fuse.top=10", recipe="local")
    twice = (
        Path(FAKES)
        .read_text()
        .replace(
            "  - tokenize: {words: stems}\n", "  - tokenize: {words: stems}\n  - tokenize: {words: plain}\n"
        )
    )
    (tmp_path / "made.yaml").write_text(twice)
    with pytest.raises(ConfError, match=r"fits 2 steps of .*: tokenize#1, tokenize#2\."):
        stages("tokenize.words=plain", recipe=str(tmp_path / "made.yaml"))
    changed = stages("tokenize#2.words=stems", "tokenize#1.words=plain", recipe=str(tmp_path / "made.yaml"))
    assert (changed["tokenize"].words, changed["tokenize#2"].words) == ("plain", "stems")


def test_a_variant_can_be_changed_further():
    assert stages("split.tokens=500", recipe="weknow-750")["split"].tokens == 500


def test_a_session_sets_fields_of_recipes_that_it_reads_and_a_record_keeps_what_was_set():
    settings = from_environment({"RAYPIPE_CONF": str(ROOT / "conf")})
    made = Session(settings, sets=("rerank.top=7",)).recipe(FAKES)
    assert from_plain(to_plain(made)) == made and made.sets == ("rerank.top=7",)


def test_values_of_a_sweep_part_at_commas_outside_of_brackets_and_quotes():
    assert read_points("a.b='x,y',[1, 2],{k: 1, l: 2},3") == [
        "a.b='x,y'",
        "a.b=[1, 2]",
        "a.b={k: 1, l: 2}",
        "a.b=3",
    ]
    with pytest.raises(ConfError, match="each value once, found 5 twice"):
        read_points("rerank.top=5, 5")
    with pytest.raises(ConfError, match=r"--set 'rerank.top=5,,6': is not valid YAML"):
        read_points("rerank.top=5,,6")
    with pytest.raises(ConfError, match="expected a value after"):
        read_points("rerank.top=")
