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
SHEETS = ("map", "neighbours", "changed", "views", "outliers")  # in artifacts: the thumbnails of a picture, as .webp
EXPORT = "export"  # default folder of glf export

COMPARISON = "compare.json"
TABLE = "table.md"
PAGE = "report.html"

PAGE_MARK = '<meta name="generator" content="glf report">'  # by it a page of ours is recognised, which may be replaced

# What --overwrite deletes of a run; anything else in its directory is the user's.
WRITTEN = (METRICS, LOG, SKIPPED, BACKBONE, RESULT, PAGE)
EPOCHS = "epoch-[0-9][0-9][0-9][0-9][0-9].ckpt"
WRITTEN_BELOW = {
    str(CHECKPOINTS): (LAST.name, BEST.name, EPOCHS),
    FEATURES: (".*.lock", "*/journal.jsonl", "*/features.f[13][62]"),
    ARTIFACTS: (FIGURE_DATA, *(f"{name}.webp" for name in SHEETS), "labels-[0-9]*.json"),
    EXPORT: (
        "*/README.md",
        "timm/model.safetensors",
        "timm/config.json",
        "torchvision/backbone.pth",
        "torchvision/backbone.pth.glf.json",
        "safetensors/backbone.safetensors",
        "onnx/backbone.onnx",
        *("hub/model.safetensors", "hub/config.json"),
    ),
    str(LOGGERS): (
        "state.json",
        *("csv/metrics.csv", "csv/hparams.yaml"),
        *("tensorboard/events.out.tfevents.*", "tensorboard/hparams.yaml"),
        *("mlflow/**/*", "wandb/**/*"),  # folders of these packages alone
    ),
}
