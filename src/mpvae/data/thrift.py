"""Thrift's compact protocol, in which Parquet writes its footer and the headers of its pages.

Only what Parquet uses is read, and in one way: what Arrow might read otherwise is refused.
"""

from typing import Any

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE, _BYTE, _I16, _DOUBLE = 1, 2, 3, 4, 7
_BITS = {_I16: 15, I32: 31, I64: 63}
_MAX_DEPTH = 16

Struct = dict[tuple[int, int], Any]
"""Values by number and type of their field; lists are lists, structs such dictionaries."""


def read_struct(data: bytes, at: int = 0, depth: int = 0) -> tuple[Struct, int]:
    """Struct that begins somewhere in some bytes, and where it ends.

    Raises
    ------
    IndexError
        If the bytes end before it does.
    ValueError
        If it is none.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("it is too deep")
    fields: Struct = {}
    number, seen = 0, set()
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at, _I16)
        if number in seen:
            raise ValueError("a field stands twice in it")
        seen.add(number)
        if kind in (_TRUE, _FALSE):
            fields[number, _TRUE] = kind == _TRUE
        else:
            fields[number, kind], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _BITS:
        return _integer(data, at, kind)
    if kind == BINARY:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        return data[at : at + length], at + length
    if kind == STRUCT:
        return read_struct(data, at, depth + 1)
    if kind == LIST:
        return _list(data, at, depth + 1)
    if kind in (_TRUE, _FALSE, _BYTE):  # in a list, a truth takes a byte
        return data[at], at + 1
    if kind == _DOUBLE:
        return data[at : at + 8], at + 8
    raise ValueError("it holds what Parquet does not")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if depth > _MAX_DEPTH:
        raise ValueError("it is too deep")
    head = data[at]
    size, kind = head >> 4, head & 15
    at += 1
    if size == 15:
        size, at = _varint(data, at)
    values = []
    for _ in range(size):  # every value takes a byte at least: this ends with the data
        value, at = _value(data, at, kind, depth)
        values.append(value)
    return values, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    value, shift = byte & 127, 7
    while byte > 127:
        if shift > 63:
            raise ValueError("it holds a number that is too long")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
    return value, at


def _integer(data: bytes, at: int, kind: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    value = (value >> 1) ^ -(value & 1)
    if not -(1 << _BITS[kind]) <= value < 1 << _BITS[kind]:
        raise ValueError("it holds a number that is too large")
    return value, at
