"""`--llm URL#MODEL`: a served model stands in the place of a recipe's generators, and what is refused."""

import json

import pytest
from chat_server import serving
from checkout import ROOT, SUPPORT

import raypipe
from raypipe.api.cli.main import main
from raypipe.api.served_models import open_judge, read_judge, require_answering, require_same
from raypipe.api.session import Session, from_environment, load_recipe
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError, ModelMissing, Unavailable
from raypipe.models.hosts import EndpointAddress, ServedModel
from raypipe.runs.stage_records import models_of

CONF = Conf((ROOT / "conf",))
URL = "http://127.0.0.1:9/v1"
NAMES = ("vanilla", "crag-baseline", "db3-task1-700", "weknow")


def of(name, llm, **more):
    return load_recipe(name, str(SUPPORT / "fake_models.yaml"), CONF, llm=llm, **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_served_model_answers_in_the_place_of_every_generator_of_a_recipe(name):
    graphs = {"": str(SUPPORT / "goldgraph")} if name == "weknow" else {}
    graphs = {"crag-mock": "http://127.0.0.1:9"} if name == "weknow" else graphs
    made = of(name, f"{URL}#org/Some-Model", graphs=graphs)
    assert {(m.name, m.loader) for m in made.models() if m.kind == "generator"} == {
        ("org/Some-Model", "openai")
    }


def folder_of_a_model(tmp_path):
    """A folder whose files say that it has a language model; its weights are never read here."""
    made = tmp_path / "own-chat"
    made.mkdir()
    (made / "config.json").write_text(
        json.dumps(
            {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "max_position_embeddings": 8192}
        )
    )
    (made / "tokenizer.json").write_text("{}")
    (made / "model.safetensors").write_bytes(b"")
    return made


def test_an_entry_or_a_folder_takes_the_place_of_every_generator_and_changes_no_passage(tmp_path):
    served, named = (of("db3-task1-700", llm) for llm in (f"{URL}#a", "glm-4-9b-chat"))
    own = of("db3-task1-700", str(folder_of_a_model(tmp_path)))
    assert [m.name for m in named.models() if m.kind == "generator"] == ["glm-4-9b-chat"]
    [model] = [m for m in own.models() if m.kind == "generator"]
    assert (model.name, model.loader, model.dtype, model.max_model_len) == (
        "own-chat",
        "vllm",
        "bfloat16",
        8192,
    )
    assert served.passages_digest() == named.passages_digest() == own.passages_digest()
    assert len({served.digest(), named.digest(), own.digest()}) == 3


@pytest.mark.parametrize(
    ("llm", "error", "message"),
    [
        ("glm-4-9b-cht", ModelMissing, "--llm glm-4-9b-cht: .*did you mean 'glm-4-9b-chat'"),
        ("all-MiniLM-L6-v2", ConfError, "--llm all-MiniLM-L6-v2: expected a generator"),
        ("{empty}", ConfError, "expected config.json, found none"),
    ],
)
def test_what_is_no_language_model_is_refused_with_what_is_meant(tmp_path, llm, error, message):
    with pytest.raises(error, match=message):
        of("vanilla", llm.format(empty=tmp_path))


def test_a_judge_is_named_and_never_the_model_that_llm_names():
    session = Session(models=str(SUPPORT / "fake_models.yaml"), llm=f"{URL}#m")
    assert read_judge(session, "scripted", "official").name == "scripted"
    assert read_judge(session, "http://127.0.0.1:8/v1#j", "official").path == "judge"


def test_the_model_is_identity_and_the_address_is_not():
    first = of("crag-baseline", f"{URL}#a")
    assert of("crag-baseline", "https://elsewhere.example.org/v1/#a").digest() == first.digest()
    assert of("crag-baseline", f"{URL}#b").digest() != first.digest()
    assert of("crag-baseline", None).digest() != first.digest()


def test_another_served_model_changes_no_passage():
    first, second = (of("db3-task1-700", f"{URL}#{model}") for model in "ab")
    assert first.passages_digest() == second.passages_digest() and first.digest() != second.digest()


def test_the_entry_llm_says_all_else_about_a_served_model(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(
        "llm: {kind: generator, loader: openai, endpoint: llm, model: '', dialect: vllm, max_model_len: 99}\n"
    )
    made = load_recipe("vanilla", str(file), CONF, llm=f"{URL}#m")
    [model] = {m for m in made.models() if m.kind == "generator"}
    assert (model.dialect, model.max_model_len, model.repo) == ("vllm", 99, "m")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("m", "expected URL#MODEL"),
        ("127.0.0.1:8000/v1#m", "found the address"),
        (URL, "found no model"),
        (f"{URL}#", "found no model"),
        ("http://name:secret@host/v1#m", "RAYPIPE_LLM_KEY"),
    ],
)
def test_what_is_no_address_with_a_model_is_refused_with_an_example(given, message):
    with pytest.raises(ConfError, match=message) as e:
        ServedModel.parse(given, "--llm")
    assert "secret" not in str(e.value)


def test_a_constraint_that_the_servers_dialect_cannot_hold_is_refused_before_any_row(tmp_path):
    recipe = tmp_path / "choice.yaml"
    recipe.write_text(
        "corpus: [{parse: {kinds: [name]}}, {split: {child_chars: 200}}]\n"
        "question:\n"
        "  - generate: {model: llama-3-8b, prompt: crag/vanilla, into: llm, max_tokens: 5, choices: [y, n]}\n"
        "  - decide: {prefer: [llm]}\n"
    )
    with pytest.raises(ConfError, match="dialect: vllm"):
        of(str(recipe), f"{URL}#m")


def test_a_release_that_another_model_made_is_not_served_by_this_one():
    made = of("vanilla", f"{URL}#a")
    require_same(made.models(), Session(llm=f"{URL}#a"))
    with pytest.raises(ConfError, match="expected 'a', the model of the release, found 'b'"):
        require_same(made.models(), Session(llm=f"{URL}#b"))


def models(*names):
    """What a server lists."""
    return json.dumps({"object": "list", "data": [{"id": n} for n in names]})


def required(server, model="m", key="", home="/nonexistent"):
    made = of("vanilla", f"{server.url}#{model}")
    settings = from_environment({"RAYPIPE_HOME": str(home)}, ROOT)
    require_answering(made.chats(), {"llm": EndpointAddress(server.url, key)}, settings)


def test_one_chat_with_the_body_of_the_step_is_sent_before_work_to_a_server_whose_key_may_not_list():
    bodies = []

    def asked(request, body):
        bodies.append(body)
        request.reply("ready")

    with serving(asked) as server:
        required(server)
        assert server.paths == ["/v1/chat/completions"]
    assert bodies[0]["max_tokens"] == 50 and bodies[0]["temperature"] == 0.1


def test_a_model_that_is_listed_under_another_name_is_tried_and_refused_with_the_names_there_are():
    def asked(request, body):
        if body["model"] == "alias":
            request.reply("ready")
        else:
            request.send('{"error": "no such model, your key is s3cret"}', 404)

    with serving(asked) as server:
        server.lists = models("llama3:latest")
        required(server, "alias")
        with pytest.raises(ConfError, match="did you mean 'llama3:latest'") as e:
            required(server, "llama3:latst", "s3cret")
    assert "s3cret" not in str(e.value)


def test_a_server_that_is_down_or_wants_a_key_is_said_before_work():
    wants = pytest.raises(ConfError, match=r"none was sent.*RAYPIPE_LLM_KEY")
    with serving(lambda request, body: request.send("", 401)) as server, wants:
        required(server)
    with pytest.raises(Unavailable, match="nothing answers there"):
        required(server)


def test_a_page_in_the_place_of_a_reply_and_a_spent_account_are_said_before_work():
    page = serving(
        lambda request, body: request.send("<html>Sign in</html>", 200, {"Content-Type": "text/html"})
    )
    with page as server, pytest.raises(ConfError, match=r"expected a reply of the protocol, found text/html"):
        required(server)
    spent = json.dumps({"error": {"code": "insufficient_quota", "message": "nothing left"}})
    account = serving(lambda request, body: request.send(spent, 429))
    with account as server, pytest.raises(Unavailable, match="plan and billing"):
        required(server)


def test_a_server_that_lists_the_model_and_refuses_its_chats_or_is_busy_is_left_to_the_rows():
    for status, said in ((400, "no"), (503, "starting"), (429, "slow down"), (400, "at most 9 max_tokens")):
        with serving(lambda request, body, of=(said, status): request.send(*of)) as server:
            server.lists = models("m")
            required(server)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYPIPE_LLM_KEY", "k3y")
    return tmp_path


def page(folder):
    found = {
        "page_name": "Velora",
        "page_url": "https://example.org/velora",
        "page_snippet": "",
        "page_last_modified": "",
        "page_result": "<p>Velora was directed by Anna Lindqvist.</p>",
    }
    line = {
        "interaction_id": "q1",
        "query": "who directed velora?",
        "query_time": "03/05/2024, 23:18:31 PT",
        "answer": "Anna Lindqvist",
        "search_results": [found],
    }
    (folder / "page.jsonl").write_text(json.dumps(line))
    return str(folder / "page.jsonl")


def test_ask_sends_the_chat_to_the_address_with_the_key_of_the_environment(home, capsys):
    keys = []

    def asked(request, body):
        keys.append(request.headers["Authorization"])
        request.reply(f"Anna Lindqvist, says {body['model']}")

    with serving(asked) as server:
        args = ["ask", "vanilla", "who directed velora?", "--pages", page(home), "--json"]
        assert main([*args, "--llm", f"{server.url}#tiny"]) == 0
    out = capsys.readouterr().out
    said = json.loads(out)
    assert said["answer"] == "Anna Lindqvist, says tiny" and set(keys) == {"Bearer k3y"}
    assert "k3y" not in out and server.url not in out


class Picky:
    """A server that refuses fields of a chat, one after the other."""

    def __init__(self, *refuses):
        self.refuses, self.bodies = refuses, []

    def __call__(self, request, body):
        for name in self.refuses:
            if name in body:
                error = {"message": f"Unsupported parameter: '{name}'.", "param": name}
                return request.send(json.dumps({"error": error}), 400)
        self.bodies.append(body)
        request.reply("Anna Lindqvist")


def test_fields_that_a_server_refuses_are_left_out_and_noted_and_make_another_model(home, capsys):
    """The name of max_tokens is no identity; what is not sent is, and is known without the server later."""
    picky = Picky("max_tokens", "temperature", "presence_penalty")
    with serving(picky) as server:
        told = ["--llm", f"{server.url}#tiny"]
        args = ["ask", "vanilla", "who directed velora?", "--pages", page(home), "--json", *told]
        before = raypipe.Session(llm=told[1]).recipe("vanilla").digest()
        assert main(args) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert said["answer"] == "Anna Lindqvist"
        assert len(picky.bodies) == 3, (
            "a chat that shows what is refused, one of the recipe as it is then, a row"
        )
        for body in picky.bodies:
            assert body["max_completion_tokens"] == 50 and not body.keys() & {*picky.refuses}
        session = raypipe.Session(llm=told[1])
        made = session.recipe("vanilla")
        [model] = {m for m in made.models() if m.kind == "generator"}
        assert "+without:presence_penalty,temperature+" in f"{model.weights}+"
        assert made.digest() != before
    [noted] = [m.unsent for m in models_of(made.models()) if m.kind == "generator"]
    assert set(noted) == {*picky.refuses}, "a record says so"


@pytest.mark.drill
def test_ask_sends_no_second_check_of_a_body_that_its_server_took_until_one_is_refused(home):
    chats, refuses = [], []

    def asked(request, body):
        chats.append(body["messages"][-1]["content"])
        if "temperature" in body and refuses:
            return request.send('{"error": "Unsupported parameter: temperature"}', 400)
        request.reply("Anna Lindqvist")

    def sent(server):
        chats.clear()
        session = raypipe.Session(llm=f"{server.url}#tiny")
        return raypipe.ask("vanilla", "who directed velora?", page(home), session=session)

    with serving(asked) as server:
        sent(server)
        assert chats[0] == "ready" and len(chats) == 2
        sent(server)
        assert len(chats) == 1 and chats[0] != "ready"
        refuses.append(True)
        assert sent(server).answer == "Anna Lindqvist", "it is sent without the field"
        sent(server)
        assert len(chats) == 1
        noted = home / "home" / "taken_chats.json"
        noted.write_text(
            json.dumps({key: when - 25 * 3600 for key, when in json.loads(noted.read_text()).items()})
        )
        sent(server)
        assert chats[0] == "ready" and len(chats) == 2, "of yesterday"
    with pytest.raises(Unavailable, match="nothing answers there"):
        sent(server)


def test_another_name_of_the_bound_alone_is_no_other_model(home):
    with serving(Picky("max_tokens")) as server:
        session = raypipe.Session(llm=f"{server.url}#tiny")
        before = session.recipe("vanilla").digest()
        assert raypipe.ask("vanilla", "who directed velora?", page(home), session=session).answer
        [model] = {m for m in session.recipe("vanilla").models() if m.kind == "generator"}
        assert model.unsent == ("max_tokens",) and session.recipe("vanilla").digest() == before


def test_plan_needs_no_server(home, capsys):
    store = str(home / "store")
    assert main(["ingest", page(home), "--store", store]) == 0
    capsys.readouterr()
    assert main(["plan", "vanilla", "--store", store, "--llm", f"{URL}#tiny", "--json"]) == 0
    steps = {s["step"]: s["max_calls"] for s in json.loads(capsys.readouterr().out)["steps"]}
    assert steps["generate:llm"] == 1


def test_an_address_judges_with_a_key_of_its_own(home):
    environ = {"RAYPIPE_JUDGE_KEY": "j"}
    session = raypipe.Session(from_environment(environ, ROOT))
    with open_judge(session, f"{URL}#wise", "official") as (judge, kit):
        assert (judge.model.name, judge.model.path, kit.endpoints["judge"].key) == ("wise", "judge", "j")


def test_what_a_template_is_told_and_how_long_a_model_may_think_are_identity(tmp_path):
    def digest(**more):
        file = tmp_path / "models.yaml"
        entry = {"kind": "generator", "loader": "openai", "endpoint": "llm", "model": ""}
        file.write_text(json.dumps({"llm": entry | more}))
        return load_recipe("vanilla", str(file), CONF, llm=f"{URL}#m").digest()

    found = [
        digest(),
        digest(thought_tokens=512),
        digest(chat_template_kwargs={"enable_thinking": False}),
        digest(chat_template_kwargs={"enable_thinking": True}),
    ]
    assert len(set(found)) == 4
