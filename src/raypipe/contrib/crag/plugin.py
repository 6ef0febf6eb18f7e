"""What this folder adds to raypipe."""

from raypipe.core.plugin_tables import Command, PluginTable

GRAPH, PUBLIC_DATA = "raypipe.kg.references:GraphRef", "raypipe.kg.references:FactsRef"
PATH = "raypipe.kg.losses:GraphPath"
COMMANDS = "raypipe.cli.kg"

TABLE = PluginTable(
    locked=True,
    question_steps={
        "match_calls": "raypipe.steps.match_calls:MatchCalls",
        "function_calls": "raypipe.steps.function_calls:FunctionCalls",
        "kg_query": "raypipe.steps.kg_query:KgQuery",
        "demote": "raypipe.steps.demote:Demote",
        "facts": "raypipe.steps.facts:Facts",
    },
    entries={"folder": GRAPH, "server": GRAPH, "facts": PUBLIC_DATA},
    files={"examples": "raypipe.kg.language.example_bank:ExampleBank"},
    loss_stages={"kg_query": PATH},
    loss_places={
        "program": "the graph's program could not be read or run",
        "linking": "a name that the graph does not know",
        "rows": "the graph gave no rows",
        "rule": "rows came, another conclusion was drawn",
    },
    commands={
        "kg": Command(
            "tools", COMMANDS, "Query a knowledge graph, serve one, and prepare examples of calls."
        ),
        "facts": Command("tools", COMMANDS, "Convert public data to tables of facts."),
    },
)
