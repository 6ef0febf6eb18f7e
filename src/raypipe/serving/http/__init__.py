"""The HTTP API as an ASGI app: it takes questions and returns answers with their evidence.

The package depends only on HTTP, JSON and the bodies of requests and responses. Its caller passes in the
answerer (`serving.answerer`); `serving.ray` decides where the app runs. No error and no log line repeats what
a client sent, and no url is ever opened.
"""

from raypipe.serving.http.app import create_app
from raypipe.serving.http.replies import answer_response

__all__ = ["answer_response", "create_app"]
