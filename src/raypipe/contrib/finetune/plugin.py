"""What this folder adds to raypipe."""

from raypipe.core.plugin_tables import Command, PluginTable

COMMANDS = "raypipe.cli.finetune"

TABLE = PluginTable(
    locked=True,
    files={"finetune": "raypipe.training.preset:Preset"},
    forgets={"labels": "raypipe.evaluation.forgotten_labels:FOLDERS"},
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
