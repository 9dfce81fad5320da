"""Content of an HDF5 file from an untrusted source: type and size are checked before anything is read.

Links are not followed, and arrays whose values lie in other files are not read, since a file could name any other;
`joined` alone reads other files, in the same folder.
Functions raise `Malformed` for missing members, and for content of another type, shape or range.
"""

from __future__ import annotations

import itertools
import math
import stat
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

# h5py types every member of a file as one of three kinds of objects, so files and groups are Any.
File = Any
Group = Any
Dataset = Any
Region = tuple[slice, ...]
GROUP, DATASET = h5py.Group, h5py.Dataset  # kinds of members

_CACHE = 1 << 24  # bytes of chunks of each array
_MOST_CHUNK = 1 << 26  # bytes of a chunk that may be larger than its array
_SIZE_PRESERVING = {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_COUNTED = {h5py.h5z.FILTER_NBIT, h5py.h5z.FILTER_SCALEOFFSET}  # their third parameter is the number of values
_CODECS = {h5py.h5z.FILTER_DEFLATE: "zlib", h5py.h5z.FILTER_LZF: "lzf", 32001: "blosc", 32015: "zstd"}
_MOST_VALUES = 64  # largest number of values of an attribute


class Malformed(ValueError):
    """A fault in the content of a file; the message is a phrase that follows the name of the file."""


@contextmanager
def opened(path: Path) -> Generator[File]:
    """Open a file for reading; errors of h5py and `Malformed` of the body become a ValueError that names the file.

    HDF5's own lock is not taken: some file systems have none, and files of this package are complete or absent. Raises
    OSError if the file is missing, or can't be opened.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: not a file")
    with path.open("rb"):
        pass  # a file that can't be opened at all is an OSError
    try:
        with _unlocked(path) as file:
            yield file
    except Malformed as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # h5py raises all kinds for damaged files
        raise ValueError(f"{path}: is not an HDF5 file, or damaged") from error


def _unlocked(path: Path) -> File:
    try:
        return h5py.File(path, "r", rdcc_nbytes=_CACHE, locking=False)
    except OSError as error:
        if "unable to lock file" in str(error):
            raise Malformed("can't be locked; unset HDF5_USE_FILE_LOCKING") from error
        if "locking flag values" not in str(error):
            raise
        return h5py.File(path, "r", rdcc_nbytes=_CACHE)  # the caller has it open with locks, and one file has one kind


def has(group: Group, name: str) -> bool:
    """Whether a group has a member of this name, including a broken link."""
    return bool(group.id.links.exists(name.encode()))


def member(group: Group, name: str, kind: type) -> Any:
    """A group (h5py.Group) or an array (h5py.Dataset) that is a direct member of a group, not a link."""
    what, path = {GROUP: "group", DATASET: "array"}[kind], path_of(group, name)
    if not has(group, name):
        raise Malformed(f"lacks the {what} {path}")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise Malformed(f"has a link at {path}, where the {what} itself must be")
    if not isinstance(found := group[name], kind):
        raise Malformed(f"has something else than {'an' if what == 'array' else 'a'} {what} at {path}")
    return found


def values(group: Group, name: str) -> np.ndarray:
    """The numbers of an attribute along one axis, as integers or in double precision."""
    path = f"{path_of(group)}:{name}"
    if name not in group.attrs:
        raise Malformed(f"lacks the attribute {path}")
    attribute = group.attrs.get_id(name)
    shape, kind = attribute.shape, attribute.dtype.kind
    if shape is None or not 1 <= math.prod(shape) <= _MOST_VALUES or kind not in "iuf":
        raise Malformed(f"has an attribute {path} that is no number, or no short list of them")
    found = np.ravel(group.attrs[name])
    if not np.isfinite(found).all():
        raise Malformed(f"has an attribute {path} = {found.tolist()} that is not finite")
    return found.astype(float) if kind == "f" else found


def number(group: Group, name: str, low: float, high: float) -> float:
    """The value of an attribute that is one number from low to high."""
    found = values(group, name)
    if len(found) != 1 or not low <= found[0] <= high:
        wanted = f"a number from {low:g} to {high:g}"
        raise Malformed(f"has {path_of(group)}:{name} = {_show(found)}, which must be {wanted}")
    return float(found[0])


def whole_numbers(group: Group, name: str, least: int) -> list[int]:
    """The values of an attribute that holds integers of at least `least`."""
    found = values(group, name)
    if (found != np.rint(found)).any() or found.min() < least or found.max() >= 2**53:
        raise Malformed(f"has {path_of(group)}:{name} = {_show(found)}, which must be whole numbers, {least} or more")
    return [int(value) for value in found]


def array(group: Group, name: str, kinds: str, columns: int | None) -> Dataset:
    """An array of shape (rows,) or (rows, columns), with all its values in the file.

    `kinds` are NumPy's letters for the kinds of types that are allowed. Without columns there is one axis.
    """
    data, path = member(group, name, DATASET), path_of(group, name)
    shape, dtype = data.shape, data.dtype
    if not shape or shape[1:] != (() if columns is None else (columns,)):
        wanted = "(N,)" if columns is None else f"(N, {columns})"
        raise Malformed(f"has {path} of shape {shape}, which must be {wanted}")
    if dtype.kind not in kinds:
        words = "real numbers" if "f" in kinds else "whole numbers"
        raise Malformed(f"has {path} of type {dtype}, which must be {words}")
    check_storage(data, path)
    return data


def check_storage(data: Dataset, path: str, region: Region | None = None) -> None:
    """Raise Malformed unless the file holds all values, or all in a region: h5py reads missing ones as zeros."""
    if data.is_virtual or data.external:
        raise Malformed(f"has {path} with its values in other files: pass those")
    codes = [code for code, _ in _filters(data)]
    with suppress(ImportError):
        if not all(map(h5py.h5z.filter_avail, codes)):
            import hdf5plugin  # noqa: F401  # pyright: ignore[reportUnusedImport]
    if not all(map(h5py.h5z.filter_avail, codes)):
        raise Malformed(f"has {path} compressed by a filter that needs hdf5plugin; `pip install hdf5plugin` adds it")
    others = [code for code in codes if code not in _SIZE_PRESERVING | _COUNTED]
    counts = {values[2] for code, values in _filters(data) if code in _COUNTED}
    if len(others) > 1 or {*others} - _CODECS.keys() or counts - {math.prod(data.chunks or ())}:
        raise Malformed(f"has {path} with other filters than one of {', '.join(_CODECS.values())}")
    size = math.prod(data.shape) * data.dtype.itemsize
    if data.chunks is None:
        complete = data.id.get_storage_size() >= size
    else:
        if (chunk := math.prod(data.chunks) * data.dtype.itemsize) > max(8 * size, _MOST_CHUNK):
            raise Malformed(f"has {path} in chunks of {chunk / 1e6:.0f} MB, much more than all its values")
        if region is None:
            expected = math.prod(-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True))
            complete = data.id.get_num_chunks() == expected
        else:
            size = math.prod(x.stop - x.start for x in region) * data.dtype.itemsize
            offsets = itertools.product(*_starts(data, region))
            complete = all(data.id.get_chunk_info_by_coord(offset).size for offset in offsets)
    unfiltered = len(codes) - bool(data.fletcher32) == 0
    if not complete or (unfiltered and size > Path(data.file.filename).stat().st_size):
        raise Malformed(f"declares {path} of shape {data.shape}, but holds fewer values")


def _filters(data: Dataset) -> list[tuple[int, tuple[int, ...]]]:
    properties = data.id.get_create_plist()
    return [(code, values) for code, _, values, _ in map(properties.get_filter, range(properties.get_nfilters()))]


def _unpacked_size(codec: str, chunk: bytes, most: int) -> int:
    """Unpacked size of a chunk, or a number above `most` if it is larger; 0 where the codec bounds it.

    An empty codec is that of chunks which are stored as they are.
    """
    if not codec:
        return len(chunk)
    if codec == "zlib":
        return len(zlib.decompressobj().decompress(chunk, most + 1))
    if codec == "blosc":
        return int.from_bytes(chunk[4:8], "little")
    if codec != "zstd" or len(chunk) < 6 or chunk[:4] != b"\x28\xb5\x2f\xfd":
        return 0
    # RFC 8878, 3.1.1.1: descriptor, window of one byte unless it is a single segment, dictionary, content size.
    single, flag, place = chunk[4] >> 5 & 1, chunk[4] >> 6, 5 + (0, 1, 2, 4)[chunk[4] & 3]
    place, length = place + 1 - single, (single, 2, 4, 8)[flag]
    return int.from_bytes(chunk[place : place + length], "little") + 256 * (length == 2)


def _starts(data: Dataset, region: Region) -> list[range]:
    """Indices along each axis at which the chunks of a region begin."""
    return [range(x.start - x.start % c, x.stop, c) for x, c in zip(region, data.chunks, strict=True)]


def _check_chunks(data: Dataset, region: Region) -> None:
    """Raise Malformed if a compressed chunk of a region unpacks to much more than its size, or to less.

    HDF5 leaves memory as it was where a chunk unpacks to less.
    """
    codecs = [(i, _CODECS[code]) for i, (code, _) in enumerate(_filters(data)) if code in _CODECS]
    if not codecs:
        return
    (place, codec), size = codecs[0], math.prod(data.chunks) * data.dtype.itemsize
    most = 2 * size + (1 << 12)  # filters may widen the numbers
    fewer_bits = any(code in _COUNTED for code, _ in _filters(data))
    for offset in itertools.product(*_starts(data, region)):
        skipped, chunk = data.id.read_direct_chunk(offset)
        is_stored = skipped >> place & 1
        unpacked = _unpacked_size("" if is_stored else codec, chunk, most)
        too_short = unpacked < size and not fewer_bits and (is_stored or codec != "lzf")
        if too_short or max(len(chunk), unpacked) > most:
            amount = "less" if too_short else "more"
            raise Malformed(f"is damaged: a chunk of {path_of(data)} unpacks to {amount} than its {size} bytes")


def rows(data: Dataset, low: int, high: int | None) -> np.ndarray:
    """Rows of an array."""
    last = data.shape[0] if high is None else min(high, data.shape[0])
    return _values_of(data, (slice(low, last), *(slice(0, n) for n in data.shape[1:])))


def _values_of(data: Dataset, region: Region) -> np.ndarray:
    _check_chunks(data, region)
    try:
        return np.asarray(data[region])
    except Exception as error:
        raise Malformed(f"is damaged: the values of {data.name} can't be read, or their checksum is wrong") from error


def joined(data: Dataset, path: str) -> np.ndarray:
    """All values of an array whose blocks lie in files beside its own, as several processes write them."""
    found, blocks = np.zeros(data.shape), data.virtual_sources()
    if sum(block.vspace.get_select_npoints() for block in blocks) != data.size:
        raise Malformed(f"declares {path} of shape {data.shape}, but holds fewer values")
    for into, name, source, space in blocks:
        if name in ("", ".", "..") or Path(name).name != name:
            raise Malformed(f"has {path} with its values in files of other folders: pass those")
        try:
            with opened(Path(data.file.filename).resolve().with_name(name)) as file:  # not beside a link
                part = member(file, source, DATASET)
                region = _block(space, part.shape)
                check_storage(part, source, region)
                found[_block(into, data.shape)] = _values_of(part, region)
        except (OSError, ValueError) as error:
            raise Malformed(f"has {path} with its values in other files, and one can't be read: {error}") from error
    return found


def _block(space: Any, shape: tuple[int, ...]) -> Region:
    """The block of an array that is selected."""
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return tuple(slice(0, n) for n in shape)
    low, high = space.get_select_bounds()
    if math.prod(np.subtract(high, low) + 1) != space.get_select_npoints():
        raise Malformed("joins other parts of arrays than blocks")
    return tuple(map(slice, low, np.add(high, 1)))


def numbers(group: Group, name: str) -> np.ndarray:
    """All values of an array of any shape, in double precision."""
    data = member(group, name, DATASET)
    check_storage(data, path_of(group, name))
    return rows(data, 0, None).astype(float)


def columns(group: Group, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Columns of a catalogue: finite numbers, and as many in each."""
    found = {name: rows(array(group, name, "iuf", None), 0, None) for name in names}
    most = max(map(len, found.values()), default=0)
    for name, values in found.items():
        if len(values) < most:
            raise Malformed(f"has {path_of(group, name)} of {len(values)} rows, and another column of {most}")
        if not np.isfinite(values).all():
            raise Malformed(f"has {path_of(group, name)} with values that are not finite")
    return found


def path_of(group: Group, name: str = "") -> str:
    """Path of a group or an array, or of a member of it."""
    return f"{group.name or ''}/{name}".strip("/").replace("//", "/")


def _show(found: np.ndarray) -> str:
    shown = ", ".join(f"{value:g}" for value in found[:4])
    return shown + (", ..." if len(found) > 4 else "")
