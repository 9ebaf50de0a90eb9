"""The README's table: methods with and without ADC on the embedded images, paired by seed.

Cost: 5 methods x {none, adc} x 2 seeds = 20 runs of 6 epochs, two at a time with one thread each: about 45 minutes on
two cores. What is done is not done again, so the command can be stopped and started. Views, batch size and temperature
were chosen on held-out training images with simclr+adc, seed 0; the scales of ADC by its share of the gradient, when
simsiam+adc had been judged once with another scale. Results: benchmarks/results/readme_table.json.

    make study
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

METHODS = ("simclr", "simsiam", "byol", "barlow_twins", "vicreg")
CONSTRAINTS = ("none", "adc")
SETTINGS = ["--data", "fashion-mini", "--views", "gentle", "--batch-size", "128", "--colours", "exact"]
HERE = Path(__file__).parent
OUT = HERE / "results" / "readme_table.json"


def one(spec: tuple[str, str, int], epochs: int, threads: int) -> None:
    """Train and judge one run, unless it is there already."""
    method, constraint, seed = spec
    run = HERE.parent / "runs" / "readme_table" / f"{method}-{constraint}-{epochs}-{seed}"
    result = run / "result.json"
    if result.exists() and "evaluation" in json.loads(result.read_text()):
        return
    glf = [str(Path(sys.executable).parent / "glf")]
    how = ["--resume"] if (run / "checkpoints" / "last.ckpt").exists() else ["--overwrite"]
    name = method if constraint == "none" else f"{method}+{constraint}"
    train = [
        *glf,
        "pretrain",
        "--method",
        name,
        "--seed",
        str(seed),
        "--epochs",
        str(epochs),
        "--out",
        str(run),
        *SETTINGS,
    ]
    judge = [*glf, "evaluate", str(run)]
    if (method, constraint) != (METHODS[0], "none"):  # pixels and the untrained network once per seed
        judge.append("--no-references")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    for command in ([*train, *how], judge):
        subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each")
    options = parser.parse_args()
    specs = [(m, c, s) for s, m, c in product(range(options.seeds), METHODS, CONSTRAINTS)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(one, spec, options.epochs, max(1, 2 // options.jobs)) for spec in specs]:
            done.result()
            write(options.epochs)
    print(write(options.epochs))


def write(epochs: int) -> str:
    """Collect what is done into the JSON file, and return the table."""
    runs = HERE.parent / "runs" / "readme_table"
    found: dict[str, dict[int, dict[str, float]]] = {}
    machine: dict[str, object] = {}
    for path in sorted(runs.glob(f"*-{epochs}-*/result.json")):
        content = json.loads(path.read_text())
        if "evaluation" not in content:
            continue
        method, constraint, _, seed = path.parent.name.split("-")
        rows = content["evaluation"]["rows"]
        for name, row in rows.items():
            found.setdefault(f"{method} {constraint}" if name == "trained" else name, {})[int(seed)] = row
        machine = {"machine": content["machine"], "versions": content["versions"]}
    OUT.parent.mkdir(exist_ok=True)
    command = f"python benchmarks/readme_table.py --epochs {epochs}"
    OUT.write_text(json.dumps({"command": command, **machine, "rows": found}, indent=1) + "\n")
    return "\n".join(table(found))


def table(found: dict[str, dict[int, dict[str, float]]]) -> list[str]:
    """Mean and spread (standard deviation) over seeds; differences seed by seed."""
    lines = ["| | linear | 5-nn | + ADC: linear | + ADC: 5-nn | seeds |", "|---|---|---|---|---|---|"]
    for name in ("pixels", "untrained"):
        if name in found:
            lines.append(
                f"| {name} | {cell(found[name], 'linear')} | {cell(found[name], 'knn5')} | | | {len(found[name])} |"
            )
    for method in METHODS:
        base, adc = found.get(f"{method} none", {}), found.get(f"{method} adc", {})
        pairs = sorted(base.keys() & adc.keys())
        base, adc = ({seed: runs[seed] for seed in pairs} for runs in (base, adc))
        if pairs:
            cells = [
                f(*given, key) for f, given in ((cell, [base]), (difference, [base, adc])) for key in ("linear", "knn5")
            ]
            lines.append(f"| {method} | {' | '.join(cells)} | {len(pairs)} |")
    return lines


def cell(runs: dict[int, dict[str, float]], key: str) -> str:
    values = [100 * run[key] for run in runs.values()]
    spread = f" ± {statistics.stdev(values):.1f}" if len(set(values)) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def difference(base: dict[int, dict[str, float]], adc: dict[int, dict[str, float]], key: str) -> str:
    deltas = [100 * (adc[seed][key] - base[seed][key]) for seed in base]
    spread = f" ± {statistics.stdev(deltas):.1f}" if len(deltas) > 1 else ""
    return f"{statistics.mean(100 * run[key] for run in adc.values()):.1f} ({statistics.mean(deltas):+.1f}{spread})"


if __name__ == "__main__":
    main()
