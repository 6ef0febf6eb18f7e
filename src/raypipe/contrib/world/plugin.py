"""What this folder adds to raypipe."""

from raypipe.core.plugin_tables import Command, PluginTable

COMMANDS = "raypipe.cli.synth"

TABLE = PluginTable(
    readers={"synth": "raypipe.synth.format:FORMAT"},
    markers={"synth.json": "synth"},
    datasets={"synth": "raypipe.synth.write:write"},
    commands={
        "synth": Command(
            "data",
            COMMANDS,
            "Write a CRAG-format dataset about an invented world, with its knowledge graph.",
        ),
        "standins": Command(
            "tools", COMMANDS, "Build tiny models with random weights, on which any recipe runs offline."
        ),
    },
)
