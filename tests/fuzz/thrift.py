"""Parquet's own words, Thrift's compact protocol, as a tree that can be changed and written.

A struct is a list of ``[field, kind, value]``, a list is ``[kind, values]``; numbers and bytes
are themselves.
"""

from random import Random
from typing import Any

from fuzz.mutations import INTEGERS, MAX_BYTES, ODD_TEXT, mutated

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def take(self, n: int) -> bytes:
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, kind: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self.byte()
        if kind in _INTEGERS:
            zigzag = self.varint()
            return (zigzag >> 1) ^ -(zigzag & 1)
        if kind == _DOUBLE:
            return self.take(8)
        if kind == _BINARY:
            return self.take(self.varint())
        if kind in (_LIST, _SET):
            head = self.byte()
            size = head >> 4 if head >> 4 != 15 else self.varint()
            return [head & 15, [self._item(head & 15) for _ in range(size)]]
        return self.struct()

    def _item(self, kind: int) -> Any:
        return self.byte() == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind)

    def struct(self) -> list[list[Any]]:
        fields, last = [], 0
        while head := self.byte():
            delta, kind = head >> 4, head & 15
            last = last + delta if delta else (lambda z: (z >> 1) ^ -(z & 1))(self.varint())
            fields.append([last, kind, self.value(kind)])
        return fields


def read_struct(data: bytes, at: int) -> tuple[list[list[Any]], int]:
    """Struct that begins at a place, and where it ends."""
    reader = _Reader(data, at)
    return reader.struct(), reader.at


def write_struct(fields: list[list[Any]]) -> bytes:
    """Bytes of a struct."""
    out, last = bytearray(), 0
    for number, kind, value in fields:
        told = (_TRUE if value else _FALSE) if kind in (_TRUE, _FALSE) else kind
        if 0 < number - last < 16:
            out.append((number - last) << 4 | told)
        else:
            out.append(told)
            out += _zigzag(number)
        if kind not in (_TRUE, _FALSE):
            out += _written(kind, value)
        last = number
    return bytes(out) + b"\0"


def _varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def _zigzag(value: int) -> bytes:
    return _varint((value << 1) ^ (value >> 63))


def _written(kind: int, value: Any) -> bytes:
    if kind in (_TRUE, _FALSE):
        return bytes([_TRUE if value else _FALSE])
    if kind == _BYTE:
        return bytes([value % 256])
    if kind in _INTEGERS:
        return _zigzag(value)
    if kind == _DOUBLE:
        return value
    if kind == _BINARY:
        return _varint(len(value)) + value
    if kind in (_LIST, _SET):
        inner, values = value
        size = len(values)
        head = (
            bytes([size << 4 | inner]) if size < 15 else bytes([0xF0 | inner]) + _varint(size)
        )
        return head + b"".join(_written(inner, item) for item in values)
    return write_struct(value)


def changed_parquet(rng: Random, data: bytes) -> bytes:
    """The footer or the header of a page changed, offsets made to fit again, mostly."""
    if rng.random() < 0.25 or len(data) < 12:
        return mutated(rng, data)
    length = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - length
    footer, body = read_struct(data, start)[0], data[:start]
    if rng.random() < 0.5:
        body = _change_page(rng, body, footer)
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 1, 2, 3))):
            _change_struct(rng, footer)
    told = write_struct(footer)
    size = len(told) if rng.random() < 0.97 else rng.choice(INTEGERS) % 2**32
    found = body + told + size.to_bytes(4, "little") + data[-4:]
    return found if len(found) <= MAX_BYTES else data


def field(fields: list[list[Any]], number: int) -> Any:
    """Value of a field of a struct, if it has it."""
    return next((value for which, _, value in fields if which == number), None)


def column_chunks(footer: list[list[Any]]) -> list[list[list[Any]]]:
    """Metadata of every column chunk of a footer."""
    groups = field(footer, 4)[1]
    return [field(chunk, 3) for group in groups for chunk in field(group, 1)[1]]


def _change_page(rng: Random, body: bytes, footer: list[list[Any]]) -> bytes:
    chunks = column_chunks(footer)
    chunk = rng.choice(chunks)
    starts = [at for at in (field(chunk, 9), field(chunk, 11)) if at]
    at = rng.choice(starts)
    header, end = read_struct(body, at)
    page = body[end : end + field(header, 3)]
    rest = body[end + field(header, 3) :]
    if rng.random() < 0.4:
        page = mutated(rng, page)
        for entry in header:
            if entry[0] == 3 or (entry[0] == 2 and field(chunk, 4) == 0):
                entry[2] = len(page)
    if rng.random() < 0.7:
        _change_struct(rng, header)
    told = write_struct(header) + page
    moved = len(told) - (len(body) - at - len(rest))
    for other in chunks:
        for entry in other:
            if entry[0] in (9, 11, 10) and entry[2] > at:
                entry[2] += moved
    for entry in chunk:
        if entry[0] == 7:
            entry[2] += moved
    return body[:at] + told + rest


def _change_struct(rng: Random, fields: list[list[Any]]) -> None:
    """Change one thing somewhere inside a struct, in place."""
    while fields:
        i = rng.randrange(len(fields))
        entry = fields[i]
        _, kind, value = entry
        if kind == _STRUCT and value and rng.random() < 0.9:
            fields = value
            continue
        if kind in (_LIST, _SET) and value[1] and rng.random() < 0.9:
            inner, values = value
            k = rng.randrange(len(values))
            if inner == _STRUCT and rng.random() < 0.9:
                fields = values[k]
            elif inner in _INTEGERS:
                values[k] = rng.choice(INTEGERS)
                return
            elif rng.random() < 0.5:
                values.extend([values[k]] * rng.choice((1, 20)))
                return
            else:
                del values[k]
                return
            continue
        if rng.random() < 0.1:
            del fields[i]
        elif kind in _INTEGERS:
            entry[2] = rng.choice(
                (rng.choice(INTEGERS), rng.randrange(12), value + 1, value - 1)
            )
        elif kind == _BINARY:
            entry[2] = rng.choice((mutated(rng, value), rng.choice(ODD_TEXT)))
        elif kind in (_TRUE, _FALSE):
            entry[2] = not value
        elif rng.random() < 0.5:
            entry[0] = rng.randrange(20)
            fields.sort(key=lambda found: found[0])
        else:
            del fields[i]
        return
