"""Base64 of whole columns: one call of the codec over a joined buffer, the padding of each value seen to by numpy."""

from __future__ import annotations

import binascii

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError

_PAD = ord("=")


def spans(array: pa.Array) -> npt.NDArray[np.int32]:
    """The ``len + 1`` offsets of a string, binary or list array into its data; slices are honoured."""
    if len(array) == 0:
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def characters(array: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of a string or binary array, those of its slice only; zero-copy."""
    data = array.buffers()[2] if len(array) else None
    if data is None or data.size == 0:
        return np.zeros(0, np.uint8)
    ends = spans(array)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def strings_of(data: bytes | npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64], like: pa.Array) -> pa.StringArray:
    """A string array over ``data`` cut at ``lengths``, with the NULLs of ``like``; DataError beyond 2 GiB."""
    return _array(pa.string(), data, lengths, like)


def validity(array: pa.Array) -> pa.Buffer | None:
    """The bitmap of the values that are not NULL, from bit 0 whatever slice ``array`` is; None where all are."""
    if not array.null_count:
        return None
    return pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def _array(
    type_: pa.DataType, data: bytes | npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64], like: pa.Array
) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise DataError("More than 2 GiB of text in one batch.")
    buffers = [validity(like), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_, len(lengths), buffers, like.null_count)


def _within(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Each value in a frame of the next multiple of three: which bytes of all the frames are the values'."""
    frames = (lengths + 2) // 3 * 3
    ends = np.cumsum(frames)
    mask = np.ones(int(ends[-1]) if len(ends) else 0, np.bool_)
    for missing in (1, 2):
        mask[ends[frames - lengths >= missing] - missing] = False
    return mask


def to_base64(array: pa.BinaryArray) -> pa.StringArray:
    """RFC 4648 section 4, without line breaks."""
    array = array.fill_null(b"") if (filled := array).null_count else array
    lengths = np.diff(spans(array)).astype(np.int64)
    mask = _within(lengths)
    padded = np.zeros(len(mask), np.uint8)
    padded[mask] = characters(array)
    encoded = np.frombuffer(binascii.b2a_base64(padded.data, newline=False), np.uint8).copy()
    quads = (lengths + 2) // 3
    ends = np.cumsum(quads) * 4
    missing = quads * 3 - lengths
    for place in (1, 2):
        encoded[ends[missing >= place] - place] = _PAD
    return strings_of(encoded, quads * 4, filled)


def from_base64(strings: pa.StringArray) -> pa.BinaryArray:
    """The inverse; white space within a value is ignored. Raises DataError for anything else."""
    filled = strings.fill_null("") if strings.null_count else strings
    data = characters(filled)
    if (data <= ord(" ")).any():
        filled = pc.replace_substring_regex(filled, r"\s+", "")
        data = characters(filled)
    offsets = spans(filled).astype(np.int64)
    lengths = np.diff(offsets)
    if (lengths % 4).any():
        raise DataError("base64 of a wrong length")
    ends = (offsets[1:] - offsets[0])[lengths > 0]
    if len(ends) == 0:
        return _array(pa.binary(), b"", lengths, strings)
    pads = (data[ends - 1] == _PAD).astype(np.int64)
    pads += (pads == 1) & (data[ends - 2] == _PAD)
    whole = data.copy()
    for place in (1, 2):
        whole[ends[pads >= place] - place] = ord("A")
    try:
        decoded = np.frombuffer(binascii.a2b_base64(whole.data, strict_mode=True), np.uint8)
    except binascii.Error as error:
        raise DataError("not base64") from error
    sizes = lengths // 4 * 3
    sizes[lengths > 0] -= pads
    return _array(pa.binary(), decoded[_within(sizes)], sizes, strings)
