"""The command line: `raypipe COMMAND`. `main` reads arguments; each other module is one group of commands."""
