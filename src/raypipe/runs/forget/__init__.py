"""`raypipe forget`: what names mean in a store, what rests on it, and how it goes.

`target` says what a name means, `find` which ids go, `apply` does it through `store.text_places`. The
decision is one file, so a forget that was killed is finished by the same command.
"""
