"""``python -m glf`` is ``glf``, also in the processes that a run on several devices starts."""

from glf.cli import main

if __name__ == "__main__":
    main()
