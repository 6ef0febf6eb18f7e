"""`raypipe forget`: what holds a page, a document or a question, or rests on it, and how it goes.

`target` says what a name means, `find` what holds it, `records` what is decided, `apply` does it: the
decision is one file, so a forget that was killed is finished by the same command.
"""
