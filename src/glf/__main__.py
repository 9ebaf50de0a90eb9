"""``python -m glf`` is ``glf``: also for the processes that a run on several devices starts.

It takes several commands, with --then between them, of which each is carried out if all before it have succeeded.
"""

import sys

from glf.cli import main
from glf.compare import THEN

if __name__ == "__main__":
    asked = sys.argv[1:]
    while True:
        end = asked.index(THEN) if THEN in asked else len(asked)
        sys.argv = ["glf", *asked[:end]]  # what a result names as its command
        main()
        if end == len(asked):
            break
        asked = asked[end + 1 :]
