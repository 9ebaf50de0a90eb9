"""``python -m glf`` is ``glf``: also for the processes that a run on several devices starts."""

import sys

from glf.cli import main

if __name__ == "__main__":
    sys.argv[0] = "glf"
    main()
