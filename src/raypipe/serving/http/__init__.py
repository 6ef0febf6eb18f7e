"""The HTTP API: questions in, answers with their evidence out, as an ASGI app.

Knows HTTP, JSON and the shapes of requests and replies. What answers is handed in (`serving.answerer`), where
the app runs is decided in `serving.ray`. No error and no log line repeats what a client sent, and no url is
ever opened.
"""

from raypipe.serving.http.app import create_app
from raypipe.serving.http.replies import answer_response

__all__ = ["answer_response", "create_app"]
