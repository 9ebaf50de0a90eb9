"""glf embed: a row of features for every image of a folder, in a file that anything reads."""

from rich.console import Console

from glf import result
from glf.config import EmbedConfig
from glf.nn.embedded import Embedded
from glf.use.plane import plane
from glf.use.rows import open_encoder, rows_of
from glf.use.tables import Table, check_target, write_table


def embed(config: EmbedConfig, console: Console | None = None) -> Embedded:
    """Write the file; returns the paths and the rows that are in it."""
    console = console or Console()
    check_target(config.out)
    encoder = open_encoder(config)
    found = rows_of(encoder, config.photos, config, console)
    about = {"model": config.run, "photos": config.photos}
    points = None
    if config.map:
        points, about["map_by"] = plane(found.rows)
        console.print(f"map       by {about['map_by']}", highlight=False)
    write_table(config.out, Table(found.paths, found.rows, points, about))
    beside = ""
    if found.skipped:
        listed = config.out.with_suffix(".skipped.txt")
        result.write(listed, "".join(f"{one.line()}\n" for one in found.skipped))
        beside = f", skipped files in {listed}"
    console.print(f"written   {config.out}{beside}", highlight=False, markup=False, soft_wrap=True)
    return found
