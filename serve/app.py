"""The endpoint's builder, for Ray Serve's own commands: `serve run serve/local.yaml`.

Reads arguments and the environment, as a command does, and builds the application of `raypipe.serving.ray`.
Arguments: the fields of `raypipe.api.endpoint.ServeArgs`.
"""

from ray.serve import Application

from raypipe.api.endpoint import ServeArgs
from raypipe.api.session import from_environment
from raypipe.core import config
from raypipe.core.config import Where


# No `from __future__ import annotations` here: Serve looks at the type of `args`, and must not find a string.
def build(args: dict) -> Application:  # type: ignore[type-arg]
    """The application. Raises ConfError for unknown arguments: Serve itself takes any."""
    endpoint, settings = config.build(ServeArgs, args, Where("serve", "args")), from_environment()
    application = endpoint.application(settings)
    print(endpoint.about_store(settings), flush=True)
    return application
