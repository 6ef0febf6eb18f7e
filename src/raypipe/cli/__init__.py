"""The command line: `main` reads arguments, `commands` lists the commands, other modules hold them by group."""
