"""Names that this folder adds to raypipe."""

from pathlib import Path

from raypipe.core.plugins import Command, PluginTable

COMMANDS = "raypipe.contrib.finetune.cli"

TABLE = PluginTable(
    locked=True,
    conf=str(Path(__file__).with_name("conf")),
    files={"finetune": "raypipe.contrib.finetune.preset:Preset"},
    forgets={"labels": "raypipe.contrib.finetune.label_files:FORGETS"},
    commands={
        "labels": Command(
            "run",
            COMMANDS,
            "Make training labels for a step: its answers, judged against golds by a model.",
        ),
        "finetune": Command(
            "run", COMMANDS, "Train a LoRA adapter on labels, check that it acts, and keep it in the store."
        ),
    },
)
