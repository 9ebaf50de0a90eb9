"""The README's table: methods with and without ADC on the embedded images, paired by seed.

Cost: 5 methods x {none, adc} x 2 seeds = 20 runs of 6 epochs, two at a time with one thread each: about 45 minutes on
two cores. What is done is not done again, so the command can be stopped and started. Views, batch size and temperature
were chosen on held-out training images with simclr+adc, seed 0; the scales of ADC by its share of the gradient, when
simsiam+adc had been judged once with another scale. Results: benchmarks/results/readme_table.json.

    make study
"""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from runs import read, train_and_judge

METHODS = ("simclr", "simsiam", "byol", "barlow_twins", "vicreg")
CONSTRAINTS = ("none", "adc")
SETTINGS = ["--data", "fashion-mini", "--views", "gentle", "--batch-size", "128", "--colours", "exact"]
HERE = Path(__file__).parent
RUNS = HERE.parent / "runs" / "readme_table"
OUT = HERE / "results" / "readme_table.json"


def one(spec: tuple[str, str, int], epochs: int) -> None:
    """Train and judge one run, unless it is there already."""
    method, constraint, seed = spec
    settings = ["--method", f"{method}+{constraint}", "--seed", str(seed), "--epochs", str(epochs), *SETTINGS]
    # pixels and the untrained network once per seed
    judging = [] if (method, constraint) == (METHODS[0], "none") else ["--no-references"]
    if why := train_and_judge(RUNS / f"{method}-{constraint}-{epochs}-{seed}", settings, judging):
        raise SystemExit(f"{method}+{constraint}, seed {seed}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each")
    options = parser.parse_args()
    specs = [(m, c, s) for s, m, c in product(range(options.seeds), METHODS, CONSTRAINTS)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(one, spec, options.epochs) for spec in specs]:
            done.result()
            write(options.epochs)
    print(write(options.epochs))


def write(epochs: int) -> str:
    """Collect what is done into the JSON file, and return the table."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    machine: dict[str, object] = {}
    for path in sorted(RUNS.glob(f"*-{epochs}-*/result.json")):
        content = read(path.parent)
        if content is None:
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
