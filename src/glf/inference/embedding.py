"""glf embed: a row of features for every image of a folder, in a file that anything reads."""

from rich.console import Console

from glf.config.inference import EmbedConfig
from glf.inference.common import compute_features, open_encoder
from glf.inference.writers import FeatureTable, check_target, write_table
from glf.measure.projection import project_2d
from glf.nn.embedded import Embedded
from glf.result import write_file


def embed(config: EmbedConfig, console: Console | None = None) -> Embedded:
    """Write the file; returns the paths and the rows that are in it."""
    console = console or Console()
    check_target(config.out)
    encoder = open_encoder(config)
    found = compute_features(encoder, config.data, config, console)
    about = {"model": config.run, "photos": config.data}
    points = None
    if config.map:
        points, about["map_by"] = project_2d(found.rows)
        console.print(f"map       by {about['map_by']}", highlight=False)
    write_table(config.out, FeatureTable(found.paths, found.rows, points, about))
    beside = ""
    if found.skipped:
        listed = config.out.with_suffix(".skipped.txt")
        write_file(listed, "".join(f"{one.line()}\n" for one in found.skipped))
        beside = f", skipped files in {listed}"
    console.print(f"written   {config.out}{beside}", highlight=False, markup=False, soft_wrap=True)
    return found
