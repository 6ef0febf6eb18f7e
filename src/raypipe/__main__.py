"""`python -m raypipe` is the `raypipe` command."""

import sys

from raypipe.api.cli.main import main

sys.exit(main())
