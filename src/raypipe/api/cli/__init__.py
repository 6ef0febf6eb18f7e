"""The command line: `main` reads arguments, `command` lists commands, other modules hold them.

What calls the API is imported when a command runs, so that its help and a wrong flag are quick.
"""
