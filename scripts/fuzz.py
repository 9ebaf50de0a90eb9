"""Fuzz of the command line: random combinations of hostile names, files and settings, each in a folder of its own.

    python scripts/fuzz.py --seed 0 --minutes 10     # the same command continues where it stopped
    python scripts/fuzz.py --seed 0 --case 17        # repeats one case and keeps its folder

Every case ends with success, with one line on stderr and exit code 2 or 3 (1: only doctor and verify), or by the signal
that the fuzz sent. A traceback, a hang, a changed input, or a file that nobody named is a finding. Cases are forked
from a process that has imported torch, which takes seconds. Results of other sources are ignored.
"""

import argparse
import atexit
import gc
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))  # this clone's, whatever is installed

from fuzzing.checks import Ended, changes, findings, snapshot  # noqa: E402
from fuzzing.commands import make_case  # noqa: E402
from fuzzing.inputs import prepare  # noqa: E402

LIMIT, IDLE = 60.0, 20.0  # seconds until a case hangs: in all, and without using the processor
COMPARE_LIMIT = 180.0  # a comparison starts processes that import torch
MEMORY, FILE = 12 * 2**30, 2**30  # bytes of address space, and of a file
IMPORTS = """glf.cli glf.train.run glf.adaptation.run glf.evaluation.suite glf.reporting.page glf.sharding glf.listing
glf.inference.embedding glf.inference.image_search glf.inference.outlier_search glf.exporting.write glf.health.examine
glf.comparison.conduct glf.comparison.verification lightning timm sklearn.linear_model sklearn.manifold""".split()
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT / "src"),
    "HF_HUB_OFFLINE": "1",
    "http_proxy": "http://127.0.0.1:9",  # nobody answers there: no case reaches the network
    "https_proxy": "http://127.0.0.1:9",
    "LANG": "C.UTF-8",
}


def become(words: list[str], folder: Path) -> None:
    """Run ``glf WORDS`` in this process, which was forked for it, and end it."""
    os.setsid()
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
        for descriptor, name in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
            opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(opened, descriptor)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        for name in ("cache", "home", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        os.environ |= {"GLF_CACHE": str(folder / "cache"), "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
        tempfile.tempdir = None
        os.chdir(folder / "work")
        sys.argv = ["glf", *words]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from glf.cli import main

        main(words)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 120
        os._exit(code)


def run(words: list[str], folder: Path, send: tuple[int, float] | None = None) -> Ended:
    """Run a command in ``folder/work``; send a signal after some time, and end it when it hangs."""
    process = os.fork()
    if process == 0:
        become(words, folder)
    try:
        return _watched(process, words, send)
    except BaseException:  # the fuzz itself is stopped
        _left(process)
        raise


def _watched(process: int, words: list[str], send: tuple[int, float] | None) -> Ended:
    began = time.monotonic()
    limit = COMPARE_LIMIT if words[0] == "compare" else LIMIT
    used, since, sent = -1.0, began, False
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        now = time.monotonic()
        if done:
            break
        if send and not sent and now - began > send[1]:
            os.kill(process, send[0])
            sent = True
        if (busy := _processor_time(process)) != used:
            used, since = busy, now
        if now - began > limit or now - since > IDLE:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return Ended(137, hung=True, sent=sent)
        time.sleep(0.02)
    code = os.waitstatus_to_exitcode(status)
    left = _left(process)
    return Ended(128 - code if code < 0 else code, left=left, sent=sent)


def _processor_time(session: int) -> float:
    """Processor time of all processes of a session so far, in ticks."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(values[3]) == session:
            total += sum(map(int, values[11:15]))
    return total


def _left(group: int) -> bool:
    """Whether processes of a group outlive its first by seconds; they are ended."""
    try:
        for _ in range(100):
            os.killpg(group, 0)
            time.sleep(0.03)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def run_case(seed: int, number: int, folder: Path, inputs: Path) -> dict[str, Any]:
    """Run a case and return its line of the results; its folder stays if there is a finding."""
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "work").mkdir(parents=True)
    case = make_case(seed, number, folder / "work", inputs)
    before = snapshot(folder / "work")
    ended = run(case.words, folder, case.signal)
    after = snapshot(folder / "work")
    err = (folder / "stderr").read_bytes()
    wrong = list(findings(case.words, ended, (folder / "stdout").read_bytes(), err))
    wrong += changes(before, after, case, ended.sent or ended.hung)
    for name in ("home", "tmp"):
        left = [str(path.relative_to(folder)) for path in (folder / name).rglob("*") if path.is_file()]
        if left and not ended.sent and not ended.hung:
            wrong.append(f"left {left[0]!r}")
    if not wrong:
        shutil.rmtree(folder)
    return {
        "seed": seed, "case": number, "words": case.words, "hostile": case.hostile, "signal": case.signal,
        "code": ended.code, "seconds": round(time.monotonic() - began, 2),
        "said": err.decode(errors="backslashreplace").strip()[-300:], "findings": wrong,
    }  # fmt: skip


def fingerprint() -> str:
    """A hash of the sources: results and inputs of others are of no use."""
    files = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("fuzz*/**/*.py"), Path(__file__)])
    return hashlib.blake2b(b"".join(path.read_bytes() for path in files), digest_size=8).hexdigest()


def prepared(out: Path, source: str) -> Path:
    """The folder of the good inputs, made if it is missing or of other sources."""
    folder = out / "inputs"
    if not (folder / "done").is_file() or (folder / "done").read_text() != source:
        print("preparing the inputs")
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "work").mkdir(parents=True)

        def command(words: list[str]) -> None:
            if run(words, folder).code:
                raise SystemExit(f"glf {shlex.join(words)} failed: {(folder / 'stderr').read_text()}")

        prepare(folder / "work", command)
        (folder / "done").write_text(source)
    return folder / "work"


def summary(results: list[dict[str, Any]], seed: int) -> int:
    """Print the outcomes and the findings, those of one kind together; return the exit code."""
    seconds = sum(one["seconds"] for one in results)
    codes = Counter(one["code"] for one in results)
    print(f"{len(results)} cases in {seconds / 60:.1f} minutes; exit codes: ", end="")
    print(", ".join(f"{count} x {code}" for code, count in sorted(codes.items())))
    kinds: dict[str, list[dict[str, Any]]] = {}
    for one in results:
        for finding in one["findings"]:
            general = re.sub(r"'[^']*'|\"[^\"]*\"(?=:)|\d+(?=.*\(glf)", "...", finding)
            if finding.startswith(("changed", "deleted", "wrote", "left")):  # what led to it rather than the name
                given = [words for words in one["hostile"] if words.startswith("--")] or one["words"][:1]
                general = " ".join([finding.split()[0], "with", given[0]])
            kinds.setdefault(general, []).append({**one, "finding": finding})
    for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        first = found[0]
        commands = ", ".join(sorted({one["words"][0] for one in found}))
        print(f"\n{len(found)} x {kind} ({commands})")
        print(f"    {first['finding']!r}; hostile: {first['hostile']}")
        print(f"    glf {shlex.join(first['words'])!r}".encode(errors="backslashreplace").decode())
        print(f"    python scripts/fuzz.py --seed {seed} --case {first['case']}")
    print(f"\n{len(kinds)} kinds of findings")
    return int(bool(kinds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10**9, help="stop after this many cases")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after so much time in cases")
    parser.add_argument("--case", type=int, help="repeat this case only")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"))
    asked = parser.parse_args()
    out = asked.out.resolve()
    (out / "home").mkdir(parents=True, exist_ok=True)
    os.environ |= {**ENVIRONMENT, "HOME": str(out / "home"), "MPLCONFIGDIR": str(out / "home")}
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for name in IMPORTS:
        import_module(name)
    gc.collect()
    gc.freeze()
    source = fingerprint()
    inputs = prepared(out, source)
    if asked.case is not None:
        result = run_case(asked.seed, asked.case, out / "cases" / f"{asked.seed}-{asked.case}", inputs)
        print((out / "cases" / f"{asked.seed}-{asked.case}"), json.dumps(result, indent=1))
        return int(bool(result["findings"]))
    log = out / "results.jsonl"
    known = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    results = [one for one in known if (one["source"], one["seed"]) == (source, asked.seed)]
    done = {one["case"] for one in results}
    spent = sum(one["seconds"] for one in results)
    for number in range(asked.cases):
        if spent > 60 * asked.minutes:
            break
        if number in done:
            continue
        result = run_case(asked.seed, number, out / "cases" / f"{asked.seed}-{number}", inputs)
        spent += result["seconds"]
        results.append(result)
        with open(log, "a") as file:
            file.write(json.dumps({"source": source, **result}) + "\n")
        if len(results) % 50 == 0:
            print(f"{len(results)} cases, {sum(bool(one['findings']) for one in results)} with findings", flush=True)
    return summary(results, asked.seed)


if __name__ == "__main__":
    sys.exit(main())
