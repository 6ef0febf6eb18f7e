"""Prices of a recipe on the session's cluster: of its language models' tokens, and of the machines."""

from __future__ import annotations

from raypipe.api.session import Session
from raypipe.cluster.capacity import declared_nodes, sized
from raypipe.cluster.placement import asked_by, placement, pools_of_stages, stage_models
from raypipe.core.prices import JUDGE, Prices
from raypipe.core.protocols import Model
from raypipe.models.entry import REMOTE
from raypipe.pipeline.caps import MACHINES
from raypipe.recipes.recipe import Recipe


def prices_of(session: Session, recipe: Recipe, judge: Model | None = None) -> Prices:
    """What files say of prices, of a model that judges, too. Raises ConfError."""
    written, entries = session.cluster_file(), session.catalog().entries
    tokens, unpriced = {}, []
    asking = [(stage.name, stage_models(stage.step)) for stage in recipe.question]
    for name, models in [*asking, *([(JUDGE, [judge])] if judge else [])]:
        for model in models:
            price = entries[model.name].usd_per_mtok if model.name in entries else None
            if price is not None:
                tokens[name] = price
            elif model.loader in REMOTE:  # what runs here is paid with its machine
                unpriced.append(model.name)
    machines = written.usd_per_hour
    asked = asked_by(recipe)
    placed_on = sized(written, [m for m in asked if m.loader == "vllm"], declared_nodes(written))
    pools = {p.name: p for p in placement(placed_on, recipe.embedders(), asked)}
    engines = sum(p.actors * p.gpus for p in pools.values() if p.name.startswith("engines "))
    actors, gpus = {}, {}
    for stage_name, pool in pools_of_stages(recipe, list(pools)).items():
        actors[stage_name] = pools[pool].actors
        held = pools[pool].actors * pools[pool].gpus
        gpus[stage_name] = held + (engines if "answer" in pool else 0.0)
    lacking = [*dict.fromkeys(unpriced), *([MACHINES] if machines is None else [])]
    return Prices(tokens, machines, actors, gpus, tuple(lacking))
