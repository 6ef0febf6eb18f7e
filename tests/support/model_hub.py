"""A hub of models on loopback, with the routes that are used: repositories without weights."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENIZER = {"tokenizer.json": 700_000, "tokenizer_config.json": {"model_max_length": 8192}}
POOLING = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
]
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131072,
}
BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 384,
    "max_position_embeddings": 512,
}
EMBEDDER = {
    **TOKENIZER,
    "config.json": BERT,
    "modules.json": MODULES,
    "1_Pooling/config.json": POOLING,
    "sentence_bert_config.json": {"max_seq_length": 256},
    "model.safetensors": 90_000_000,
}
CROSS = {
    **TOKENIZER,
    "config.json": {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
    "model.safetensors": 80_000_000,
}
REPOS = {
    "org/Chat-8B": {**TOKENIZER, "config.json": LLAMA, "model-1.safetensors": 16_060_000_000},
    "org/embedder": EMBEDDER,
    "BAAI/bge-small": {
        **EMBEDDER,
        "1_Pooling/config.json": {
            **POOLING,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_cls_token": True,
        },
    },
    "org/cross": CROSS,
    "org/classifier": {**CROSS, "config.json": {**CROSS["config.json"], "id2label": {"0": "a", "1": "b"}}},
    "org/pickled": {**TOKENIZER, "config.json": BERT, "pytorch_model.bin": 9},
    "org/code": {**EMBEDDER, "config.json": {**BERT, "auto_map": {"AutoModel": "modeling.Own"}}},
    "org/modules": {**EMBEDDER, "modules.json": [{"type": "custom_st.Transformer", "path": ""}]},
    "sentence-transformers/paraphrase-MiniLM-L12-v2": EMBEDDER,
    "Qwen/Qwen1.5-14B-Chat-GPTQ-Int4": {**TOKENIZER, "config.json": LLAMA, "model.safetensors": 9_700_000},
    "org/vague": {**TOKENIZER, "config.json": BERT, "model.safetensors": 9},
}


class Hub(BaseHTTPRequestHandler):
    """The routes of a model hub that are used."""

    def do_GET(self):
        path = self.path.partition("?")[0].strip("/")
        self.server.paths.append(path)
        if path.startswith("api/models/"):
            name, _, revision = path.removeprefix("api/models/").partition("/revision/")
            if name == "org/closed":
                return self.send_error(401)
            if name not in REPOS or revision not in ("", "main", COMMIT):
                return self.send_error(404)
            sizes = {n: f if isinstance(f, int) else len(json.dumps(f)) for n, f in REPOS[name].items()}
            tree = {"sha": COMMIT, "gated": "manual" if "Chat" in name else False, "tags": ["license:mit"]}
            tree["siblings"] = [{"rfilename": n, "size": size} for n, size in sizes.items()]
            if "Chat" in name:
                tree |= {"cardData": {"license": "llama3"}, "safetensors": {"total": 8_030_000_000}}
            return self.send(tree)
        name, _, file = path.partition(f"/resolve/{COMMIT}/")
        return self.send(REPOS[name][file])

    def send(self, tree):
        raw = json.dumps(tree).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args):
        pass


@contextmanager
def serving_hub():
    """Its server: `paths` were asked for, `url` is its address, as HF_ENDPOINT names it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.paths, server.url = [], f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
