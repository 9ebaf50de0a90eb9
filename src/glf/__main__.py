"""``python -m glf`` is ``glf``."""

import sys

from glf.cli import main

if __name__ == "__main__":
    sys.argv[0] = "glf"  # the program's name in a recorded command line
    main()
