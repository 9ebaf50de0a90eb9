"""Settings as frozen, keyword-only dataclasses. Unknown keys are errors; every run saves its own.

No torch here: the command line reads these files to print its help.
"""
