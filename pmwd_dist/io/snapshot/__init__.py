"""Snapshots in the HDF5 formats of Gadget (pynbody, yt) and SWIFT (swiftsimio), and readers for other codes' too.

Each process writes one file.
"""
