"""The command line: `main` reads arguments, `commands` lists commands, other modules hold them."""
