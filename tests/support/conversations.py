"""Conversations of three turns about invented films and firms: the first names its subject, the second has a
pronoun in its place, the third leaves it out or asks the same of another.

`python tests/support/conversations.py FOLDER` writes documents.jsonl, of which each is about one subject, and
questions.jsonl, a row for each turn with the turns before it and the right answers as what was replied.
"""

from __future__ import annotations

import sys
from pathlib import Path

from raypipe.contrib.world.profile import Profiles
from raypipe.contrib.world.world.world import build_world
from raypipe.core.textfile import write_json_lines

COUNT, OTHERS = 40, 80  # conversations; documents about subjects that none of them is about
FILM = """
director: Who directed {name}? | composer: And who wrote its music? | budget: And the budget?
length: How long is {name}? | town: Where did its set stand? | town: What about {other}?
budget: What was the budget of {name}? | director: Who directed it? | composer: And who wrote its music?
town: Where did the set of {name} stand? | length: How long is this film? | length: And of {other}?
"""
FIRM = """
ceo: Who is chief executive officer of {name}? | founded: When was it founded? | founded: What about {other}?
headquarters: Where is the head office of {name}? | ceo: Who runs it? | founded: And when was it founded?
founded: When was {name} founded? | headquarters: Where is its head office? | headquarters: And {other}?
"""
"""Kinds of conversations: for each turn the key of the fact that it asks for, and its words."""


def write_conversations(folder: Path, count: int = COUNT, seed: int = 3) -> list[dict[str, object]]:
    """Writes both files, and returns the rows of questions. Every other conversation is in lower case."""
    world = build_world(seed)
    films = [m.title for m in world.film.movies][: count + OTHERS // 2]
    firms = [c.name for c in world.market.companies][: count + OTHERS // 2]
    profiles = Profiles(world)
    refs = [*(("movie", n) for n in films), *(("company", n) for n in firms)]
    facts = {ref: profiles.of(ref) for ref in refs}
    documents = [
        {"id": name, "title": name, "text": " ".join(f.sentence for f in found)}
        for (_, name), found in facts.items()
    ]
    rows: list[dict[str, object]] = []
    for i in range(count):
        kinds, kind, known = (FILM, "movie", films) if i % 2 else (FIRM, "company", firms)
        names = {"name": known[i // 2], "other": known[i // 2 + 1]}
        said: list[dict[str, str]] = []
        talks = kinds.strip().splitlines()
        for n, turn in enumerate(talks[i // 2 % len(talks)].split(" | ")):
            key, _, words = turn.partition(": ")
            about = names["other" if "{other}" in words else "name"]
            [gold, *_] = [f.value for f in facts[kind, about] if f.key == key]
            asked = words.format_map(names)
            asked, gold = (asked.lower(), gold.lower()) if i % 4 > 1 else (asked, gold)
            rows.append({"id": f"{i}-{n + 1}", "question": asked, "answers": [gold], "turns": list(said)})
            said += [{"role": "user", "text": asked}, {"role": "assistant", "text": gold}]
    write_json_lines(folder / "documents.jsonl", documents)
    write_json_lines(folder / "questions.jsonl", rows)
    return rows


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{len(write_conversations(target))} questions in {target}\n")
