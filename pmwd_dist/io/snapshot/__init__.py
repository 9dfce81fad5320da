"""Snapshots that other codes read: Gadget HDF5 (pynbody, yt) and SWIFT (swiftsimio). One file a process."""

from pmwd_dist.io.snapshot.base import SnapshotHeader as SnapshotHeader
from pmwd_dist.io.snapshot.formats import FORMATS as FORMATS
from pmwd_dist.io.snapshot.formats import Format as Format
from pmwd_dist.io.snapshot.reader import load_snapshot as load_snapshot
from pmwd_dist.io.snapshot.reader import read_header as read_header
from pmwd_dist.io.snapshot.reader import snapshot_files as snapshot_files
from pmwd_dist.io.snapshot.writer import save_snapshot as save_snapshot
