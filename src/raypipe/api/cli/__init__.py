"""Command line. `main` reads arguments, `command` lists the commands, and the other modules define them.

The API's modules are imported when a command runs, so help and errors in flags are quick.
"""
