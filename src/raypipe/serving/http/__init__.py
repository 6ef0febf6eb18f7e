"""The HTTP face: questions in, answers with their evidence out, as an ASGI app.

Knows HTTP, JSON and the shapes of requests and replies. How a question is answered is handed in (`online`);
where the app runs is `deploy`'s matter. What a client sent appears in no error and no log, and no url is ever
opened.
"""

from raypipe.serving.http.app import application
from raypipe.serving.http.responses import reply

__all__ = ["application", "reply"]
