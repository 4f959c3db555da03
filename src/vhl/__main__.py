"""`python -m vhl` is the command `vhl`."""

import sys

from vhl.cli.main import main

sys.exit(main())
