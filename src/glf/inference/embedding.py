"""glf embed: write features of every image of a folder to a file that other programs read."""

from pathlib import Path

from rich.console import Console

from glf.config.inference import EmbedConfig, parse_part
from glf.inference.common import compute_features, open_encoder
from glf.inference.parts import embed_part
from glf.inference.writers import FeatureTable, check_target, skipped_file, write_table
from glf.measure.projection import project_2d
from glf.nn.features import SourceFeatures
from glf.nn.maps import with_maps
from glf.result import write_file
from glf.ui import say


def embed(config: EmbedConfig, console: Console | None = None) -> SourceFeatures | str:
    """Write the file, and return the paths and features in it; with ``part``, return where that part is."""
    console = console or Console()
    if config.part is not None:
        return embed_part(config, parse_part(config.part), console)
    out = Path(config.out)
    check_target(out, config.features)
    if config.map and config.features == "map":
        raise ValueError("--map projects one vector of each image: leave it out with --features map")
    encoder = open_encoder(config)
    if config.features == "map":
        encoder = with_maps(encoder)
    found = compute_features(encoder, config.data, config, console)
    about = {"model": config.run, "data": config.data}
    points = None
    if config.map:
        points, about["map_by"] = project_2d(found.features)
        say(console, f"map       by {about['map_by']}")
    write_table(out, FeatureTable(found.paths, found.features, points, about))
    where = str(out)
    if found.skipped:
        listed = skipped_file(out)
        write_file(listed, "".join(f"{one.line()}\n" for one in found.skipped))
        where += f", skipped files in {listed}"
    say(console, f"written   {where}")
    return found
