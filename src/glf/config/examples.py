"""What each command's help ends with: lines that one can paste and change."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "pretrain": (
        "glf pretrain --data photos/ --method simclr+adc --backbone resnet18 --out runs/a",
        "glf pretrain --data cifar10 --method byol --recipe cifar --download",
        "glf pretrain --data photos/ --weights lightly.ckpt --backbone resnet50 --out runs/b",
        "glf pretrain --resume --out runs/a",
    ),
    "evaluate": (
        "glf evaluate runs/a",
        "glf evaluate runs/a --suite knn linear geometry theory --compare-with runs/b",
        "glf evaluate timm:resnet18 --data photos/ --download",
        "glf evaluate timm:resnet50 --weights solo.ckpt --data cifar10",
    ),
    "compare": (
        "glf compare --methods simclr byol --constrain none adc --seeds 3 --data cifar10 --out runs/compare",
        "glf compare --study benchmarks/studies/headline.toml --scale tiny",
    ),
    "verify": ("glf verify runs/a", "glf verify runs/compare/cifar10/simclr/adc/0/result.json"),
    "report": ("glf report runs/a", "glf report runs/ --out report.html"),
    "shard": (
        "glf shard photos/ --out shards",
        "glf shard photos/ --out shards --prior timm:tf_efficientnet_lite0 --per-shard 2000",
    ),
    "embed": (
        "glf embed runs/a photos/ --out embeddings.parquet",
        "glf embed runs/a photos/ --out embeddings.csv --map",
        "glf embed timm:resnet18 photos/ --out embeddings.npy --download",
    ),
    "search": (
        "glf search runs/a query.jpg photos/",
        "glf search runs/a one.jpg two.png photos/ --k 5 --out found.csv",
    ),
    "outliers": (
        "glf outliers runs/a photos/",
        "glf outliers timm:resnet18 photos/ --similarity 0.98 --count 50 --out odd.csv",
        "glf outliers pixels photos/",
    ),
    "export": (
        "glf export runs/a --format timm",
        "glf export runs/a --format onnx --out backbone.onnx",
        "glf export runs/a --format torchvision --out backbone.pth",
    ),
    "doctor": ("glf doctor runs/a",),
    "methods": ("glf methods", "glf methods swav"),
}


def with_examples(command: str, kind: type) -> str:
    """What a command's help begins with: what it does, and how it is called."""
    lines = "".join(f"\n  {line}" for line in EXAMPLES[command])
    return f"{(kind.__doc__ or '').strip()}\n\nExamples:{lines}"
