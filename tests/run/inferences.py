"""Small inferences: settings and plans."""

from __future__ import annotations

from pathlib import Path

from pmwd_dist.run.inference.job import InferenceJob
from pmwd_dist.run.settings import InferenceSettings, read_as

SMALL = """
[box]
size = 60.0
mesh = 4
[time]
a_stop = 0.5
[noise]
seed = 1
[devices]
pdims = [1, 1]
[model]
gravity = "linear"
bias = "eulerian"
b1 = 1.8
line_of_sight = "none"
[likelihood]
sigma = 0.5
[priors]
b1 = { kind = "normal", mean = 1.5, sd = 0.5, low = 0.1 }
[start]
begin = "prior"
[sampler]
chains = 2
tuning_steps = 40
energy_variance = 2e-4
steps = 36
chunk = 12
"""

LENSING = (
    SMALL.replace('gravity = "linear"\nbias = "eulerian"\nb1 = 1.8', 'bias = "none"')
    .replace("sigma = 0.5", 'kind = "lensing"\ndensity = [10.0, 20.0]')
    .replace("a_stop = 0.5", "a_start = 0.9\nsteps = 1\nlpt_order = 1")
    .replace("b1 = {", "sigma8 = {")
    + """
[observe.light_cone]
sources = [0.02, 0.04]
rays = 4
pixels = 4
"""
)


def plan_of(folder: Path, *overrides: str, text: str = SMALL) -> InferenceJob:
    file = folder.parent / "small.toml"
    file.write_text(text)
    return InferenceJob.of(read_as(InferenceSettings, file, overrides), folder)
