"""Entry point of `python -m triplepoint`."""

import sys

from triplepoint.cli import main

sys.exit(main())
