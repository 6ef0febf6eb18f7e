"""`python -m raypipe` is the `raypipe` command."""

import sys

from raypipe.cli.main import main

sys.exit(main())
