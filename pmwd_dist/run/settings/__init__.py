"""Settings of a run: the sections of its TOML file, their checks, and the simulation that they describe."""

from typing import TYPE_CHECKING

from pmwd_dist._jax.lazy import lazy_names

if TYPE_CHECKING:
    from pmwd_dist.run.settings.inference import InferenceSettings as InferenceSettings
    from pmwd_dist.run.settings.physics import build as build
    from pmwd_dist.run.settings.reading import SettingsError as SettingsError
    from pmwd_dist.run.settings.reading import read_any as read_any
    from pmwd_dist.run.settings.reading import read_as as read_as
    from pmwd_dist.run.settings.setup import SimulationSetup as SimulationSetup
    from pmwd_dist.run.settings.simulation import Settings as Settings
    from pmwd_dist.run.settings.simulation import SimulationSettings as SimulationSettings
    from pmwd_dist.run.settings.template import to_toml as to_toml
else:
    __getattr__ = lazy_names(__name__)[0]
