"""Names of the files in a run directory and in the directory of a comparison."""

from pathlib import Path

CONFIG = "config.json"  # the resolved config
METRICS = "metrics.jsonl"  # a line per logged step and per epoch
LOGGERS = Path("loggers")  # files of the loggers, and their runs' ids
LOG = "train.log"  # the lines printed during training
SKIPPED = "skipped.txt"  # files that could not be read
BACKBONE = "backbone.safetensors"
CHECKPOINTS = Path("checkpoints")
LAST = CHECKPOINTS / "last.ckpt"
BEST = CHECKPOINTS / "best.ckpt"
LOCK = "run"  # .run.lock: held while a run trains
RESULT = "result.json"  # config, final metrics, evaluation, versions, machine, command
FEATURES = "features"  # cached features
ACTIVATIONS = "activations"  # in the user's cache: activations of frozen trunks
ARTIFACTS = "artifacts"  # data of the report's pictures
FIGURE_DATA = "report.json"  # in artifacts: all of it but the thumbnails
EXPORT = "export"  # default folder of glf export

COMPARISON = "compare.json"
TABLE = "table.md"
PAGE = "report.html"

# What --overwrite deletes of a run; anything else in its directory is the user's.
WRITTEN = (METRICS, str(LOGGERS), LOG, SKIPPED, BACKBONE, str(CHECKPOINTS), RESULT, FEATURES, ARTIFACTS, EXPORT, PAGE)
