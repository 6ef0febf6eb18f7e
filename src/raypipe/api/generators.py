"""Language models that commands ask on their own: an entry by its name, and its replies in this process."""

from __future__ import annotations

from collections.abc import Sequence

from raypipe.api.session import Session, endpoint_addresses
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.llm import Chat, Generated, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.kit import LocalKit


def generator_of(session: Session, option: str, name: str, others: str) -> Model:
    """The generator that an option names. Raises ModelMissing for no entry of the models file, with `others`
    that the option takes, and ConfError for a model of another kind."""
    models = session.catalog()
    if name not in models.entries:
        hint = did_you_mean(name, models.entries)
        raise ModelMissing(f"{option} {name}: {models.file} has no such model; {hint}. {others}")
    if (model := models.model(name)).kind != "generator":
        raise ConfError(f"{option} {name}: expected a generator, found a model of kind {model.kind}")
    return model


async def replies(
    session: Session, model: Model, chats: Sequence[Chat], sampling: Sampling
) -> list[Generated | Fault]:
    """What a generator says to each chat."""
    endpoints = endpoint_addresses(session.cluster_file(), [model], session.settings.keys)
    kit = LocalKit(None, engines=None, endpoints=endpoints)
    try:
        return await kit.generator(model)(chats, sampling)
    finally:
        await kit.close()
