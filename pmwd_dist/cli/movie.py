"""A movie of the density slices of a run."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pmwd_dist._errors import ArgumentError
from pmwd_dist._files import naming
from pmwd_dist.cli.snapshots import check_outputs
from pmwd_dist.report import plot
from pmwd_dist.report.style import DPI
from pmwd_dist.run.common import manifest
from pmwd_dist.run.outputs.slices import Slices

# Of animations, near their beginning.
_MARKS = {".gif": "NETSCAPE2.0", ".mp4": "ftyp", ".mkv": "matroska", ".webm": "webm", ".avi": "AVI "}


def write_movie(folder: Path, output: Path | None = None, *, fps: int = 8) -> Path:
    """Write the slices of a run as frames, from early to late, on the scale of the last one; return the path.

    The file is a GIF, or of another format by ffmpeg; default: movie.gif in the folder. Slices that are no files of the
    run are left out. Raises ValueError if there are fewer than two slices, or ffmpeg is missing.
    """
    from matplotlib.animation import writers

    paths = [folder / name for name in manifest.files(folder) if re.fullmatch(r"density_z.*\.npz", name)]
    slabs = sorted((Slices.read(path) for path in paths if path.is_file()), key=lambda slab: -float(slab["z"]))
    if len(slabs) < 2:
        raise ArgumentError("DIR", str(folder), f"has {len(slabs)} density slices", "set more output.redshifts")
    path = output or folder / "movie.gif"
    if not path.parent.is_dir():
        raise ArgumentError("--output", str(path), "is in a folder that does not exist")
    check_outputs([], {path: _MARKS.get(path.suffix.lower(), "no mark is known")})
    kind = "pillow" if path.suffix.lower() == ".gif" else "ffmpeg"
    if not writers.is_available(kind):
        raise ArgumentError("--output", str(path), "needs ffmpeg", "install it, or choose a name that ends with .gif")
    figure = plot.density(slabs[-1]["density"], slabs[-1]["sides"].tolist())
    axes, writer = figure.axes[0], writers[kind](fps=fps)
    image = axes.images[0]
    with naming(str(path)), TemporaryDirectory(dir=path.parent) as aside:
        with writer.saving(figure, str(Path(aside, path.name)), dpi=DPI / 2):
            for slab in slabs:
                image.set_data(np.log10(np.maximum(slab["density"], 10 ** image.get_clim()[0])).T)
                axes.set_title(f"redshift {slab['z']:.3g}", fontsize=15, pad=10)
                writer.grab_frame()
        Path(aside, path.name).replace(path)
    return path
