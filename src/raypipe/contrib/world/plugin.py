"""Names that this folder adds to raypipe."""

from raypipe.core.plugins import Command, PluginTable

COMMANDS = "raypipe.contrib.world.cli"

TABLE = PluginTable(
    readers={"synth": "raypipe.contrib.world.format:FORMAT"},
    markers={"synth.json": "synth"},
    datasets={"synth": "raypipe.contrib.world.write:write"},
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
