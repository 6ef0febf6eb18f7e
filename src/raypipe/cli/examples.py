"""The command `examples`: training questions to a pool that the step `examples` shows from."""

from __future__ import annotations

from raypipe.cli.command import Args, arg, called, command, printed


@command(
    "examples",
    "raypipe examples qasper/qasper-train-v0.3.json --out qasper/train.jsonl",
    arg("data PATH+", "questions with answers"),
    "format",
    arg("--out FILE", "the pool: .jsonl or .jsonl.gz", required=True),
    arg(
        "--explain MODEL",
        "a generator of the models file: it says why each answer is right, and that is kept",
    ),
    "models llm cluster json",
)
def _examples(args: Args) -> int:
    from raypipe.api.example_pools import build_examples

    use = f"use it with --graph NAME={args.out}, NAME as the recipe calls its pool"
    return printed(args, called(build_examples, args), lambda made: print(made.title, use, sep="\n"))
