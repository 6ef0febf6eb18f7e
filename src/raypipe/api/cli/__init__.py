"""Command line. `main` reads the arguments, `command` lists the commands, and the other modules define them.

The API's modules are imported when a command runs, so that help and errors in arguments appear quickly.
"""
