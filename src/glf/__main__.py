"""``python -m glf`` is ``glf``: also for the processes that a run on several devices starts.

It takes several commands, with --then between them, of which each is carried out if all before it have succeeded.
"""

import sys

from glf.cli import main
from glf.comparison import THEN

if __name__ == "__main__":
    command: list[str] = []
    for word in [*sys.argv[1:], THEN]:
        if word != THEN:
            command.append(word)
            continue
        sys.argv = ["glf", *command]  # what a result names as its command
        main()
        command = []
