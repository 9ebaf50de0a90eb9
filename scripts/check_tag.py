"""Check that the tag of a release is the version of the package, and that the changelog has a section for it.

make package TAG=v1.2.3
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def mistake(tag: str, package: str, changelog: str) -> str:
    """What is wrong with a tag, given the package's ``__init__.py`` and the changelog; empty if nothing is."""
    (version,) = re.findall(r'^__version__ = "(.+)"$', package, flags=re.MULTILINE)
    if tag != f"v{version}":
        return f"the tag {tag} does not name the version {version} of src/glf/__init__.py: it would be v{version}"
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", changelog, flags=re.MULTILINE):
        return f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'"
    return ""


if __name__ == "__main__":
    if found := mistake(
        sys.argv[1],
        (ROOT / "src" / "glf" / "__init__.py").read_text(encoding="utf-8"),
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    ):
        sys.exit(found)
