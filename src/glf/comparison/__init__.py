"""Methods x variants x data x seeds under one protocol, paired by seed; and stored results, judged again."""

THEN = "--then"  # between commands of `python -m glf` that one process carries out: a third of a short one is imports
