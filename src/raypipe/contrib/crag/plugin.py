"""Plugin table of CRAG's graph: the steps, entries, loss places and commands that it adds to raypipe."""

from pathlib import Path

from raypipe.core.plugins import Command, PluginTable

GRAPH, PUBLIC_DATA = "raypipe.contrib.crag.references:GraphRef", "raypipe.contrib.crag.references:FactsRef"
PATH = "raypipe.contrib.crag.losses:GraphPath"
COMMANDS = "raypipe.contrib.crag.cli"

TABLE = PluginTable(
    locked=True,
    conf=str(Path(__file__).with_name("conf")),
    question_steps={
        "match_calls": "raypipe.contrib.crag.steps.match_calls:MatchCalls",
        "function_calls": "raypipe.contrib.crag.steps.function_calls:FunctionCalls",
        "kg_query": "raypipe.contrib.crag.steps.kg_query:KgQuery",
        "demote": "raypipe.contrib.crag.steps.demote:Demote",
        "facts": "raypipe.contrib.crag.steps.facts:Facts",
    },
    entries={"folder": GRAPH, "server": GRAPH, "facts": PUBLIC_DATA},
    files={"examples": "raypipe.contrib.crag.language.example_bank:ExampleBank"},
    loss_stages={"kg_query": PATH},
    loss_places={
        "program": "the graph's program could not be read or run",
        "linking": "a name that the graph does not know",
        "rows": "the graph gave no rows",
        "rule": "the graph gave rows, but the answer made of them is another",
    },
    commands={
        "kg": Command(
            "tools", COMMANDS, "Query a knowledge graph, build or serve one, and prepare examples of calls."
        ),
        "facts": Command("tools", COMMANDS, "Convert public data to tables of facts."),
    },
)
