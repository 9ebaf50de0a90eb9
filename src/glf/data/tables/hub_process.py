"""Runs in a process of its own, without glf: ask ``datasets`` for a data set of the Hub, and print where its files are.

Arguments: name, configuration or "". The answer is the last line of the output, as JSON.
"""

import json
import sys
from typing import Any


def main() -> None:
    answer: dict[str, Any]
    try:
        import datasets

        name, configuration = sys.argv[1:]
        found = datasets.load_dataset(name, configuration or None)
        answer = {"splits": {split: [file["filename"] for file in part.cache_files] for split, part in found.items()}}
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        answer = {"kinds": kinds, "why": str(error) or kinds[0]}
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
