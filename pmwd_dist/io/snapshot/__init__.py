"""Snapshots in the HDF5 formats of Gadget (pynbody, yt) and SWIFT (swiftsimio), and readers for other codes' too.

Each process writes one file.
"""

from pmwd_dist.io.snapshot.base import Precision as Precision
from pmwd_dist.io.snapshot.files import snapshot_files as snapshot_files
from pmwd_dist.io.snapshot.header import SnapshotHeader as SnapshotHeader
from pmwd_dist.io.snapshot.header import read_header as read_header
from pmwd_dist.io.snapshot.initial import InitialConditions as InitialConditions
from pmwd_dist.io.snapshot.initial import find_initial_conditions as find_initial_conditions
from pmwd_dist.io.snapshot.initial import load_initial_conditions as load_initial_conditions
from pmwd_dist.io.snapshot.matter import Matter as Matter
from pmwd_dist.io.snapshot.matter import lattice_of as lattice_of
from pmwd_dist.io.snapshot.matter import matter_notes as matter_notes
from pmwd_dist.io.snapshot.matter import paint_matter as paint_matter
from pmwd_dist.io.snapshot.matter import snapshot_density as snapshot_density
from pmwd_dist.io.snapshot.reader import load_snapshot as load_snapshot
from pmwd_dist.io.snapshot.units import LengthUnit as LengthUnit
from pmwd_dist.io.snapshot.writer import FORMATS as FORMATS
from pmwd_dist.io.snapshot.writer import Compression as Compression
from pmwd_dist.io.snapshot.writer import Format as Format
from pmwd_dist.io.snapshot.writer import Snapshot as Snapshot
from pmwd_dist.io.snapshot.writer import save_snapshot as save_snapshot
