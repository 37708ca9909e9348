"""Bytes made worse: pure functions of a random generator and of valid files."""

import re
import struct
from collections.abc import Sequence
from random import Random

MAX_BYTES = 100_000
"""Largest input: what a few bytes can do is the question, not what many can."""

INTEGERS = (
    0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 100, 127, 128, 255, 256, 999, 1000, 1023, 1024,
    4095, 4096, 32767, 32768, 65535, 65536, 10**5, 10**6, 2_999_999, 3_000_000, 3_000_001,
    10**7, 2**24, 10**8, 2**28, 10**9, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**12, 2**53,
    2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -1, -2, -128, -129, -32768, -(2**31),
    -(2**63),
)  # fmt: skip
"""Numbers at which counts, sizes and offsets go wrong."""

NUMBERS = (
    b"0", b"1", b"-1", b"-0", b"0.5", b"1e999", b"-1e999", b"1e308", b"1e-400", b"nan", b"inf",
    b"-inf", b"NaN", b"Infinity", b"1_000", b"0x10", b"1,5", b"9" * 400, b"9" * 5000, b"1e",
    b"\xd9\xa3", b"3.4028236e38", b"1.7976931348623157e308", b"+1", b" 1", b"1 ", b"00001",
    *(str(n).encode() for n in INTEGERS),
)  # fmt: skip
"""Texts where a number should stand."""

ODD_TEXT = (
    b"\0", b"\r", b"\n", b"\r\n", b"\n\n", b"\t", b" ", b"", b"\x1b[31m", b"\x85",
    b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\"", b"'", b"\\", b"''", b'""', b'"""', b"..", b"../../etc/passwd",
    b"/dev/zero", b"%s%n", b"{}", b"[]", b"None", b"__class__", b"\xf0\x9f\x90\x9f",
    b"a" * 300, b"a" * 140_000,
)  # fmt: skip
"""Texts that confuse what cuts text into pieces."""

_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def mutated(
    rng: Random, data: bytes, others: Sequence[bytes] = (), tokens: Sequence[bytes] = ()
) -> bytes:
    """One to some changes of a file.

    Parameters
    ----------
    rng
        All choices come from it.
    data
        The file.
    others
        Files to take pieces from.
    tokens
        Words of the format; where there are some, half of the changes are of text, and now
        and then the file is a few of them and nothing else.
    """
    if tokens and rng.random() < 0.05:
        data = b"".join(_word(rng, tokens) for _ in range(rng.choice((1, 1, 2, 3, 5, 12))))
        return data[:MAX_BYTES]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 12))):
        if tokens and rng.random() < 0.5:
            data = rng.choice(_TEXT)(rng, data, tokens)
        elif others and rng.random() < 0.1:
            data = spliced(rng, data, rng.choice(others))
        else:
            data = rng.choice(_BYTES)(rng, data)
        data = data[:MAX_BYTES]
    return data


def spliced(rng: Random, data: bytes, other: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def integer_bytes(rng: Random) -> bytes:
    """A telling integer in 1, 2, 4 or 8 bytes, little- or big-endian."""
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice(INTEGERS) % 2 ** (8 * size)
    return value.to_bytes(size, rng.choice(("little", "big")))


def _slice(rng: Random, data: bytes) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    # mostly short, now and then the rest of the file
    length = rng.choice((1, 1, 2, 4, 8, rng.randint(0, 64), rng.randint(0, len(data))))
    return start, min(len(data), start + length)


def _flip(rng: Random, data: bytes) -> bytes:
    if not data:
        return b"\0"
    i = rng.randrange(len(data))
    return data[:i] + bytes([data[i] ^ (1 << rng.randrange(8))]) + data[i + 1 :]


def _set(rng: Random, data: bytes) -> bytes:
    if not data:
        return b"\xff"
    i = rng.randrange(len(data))
    value = rng.choice((0, 255, 127, 128, rng.randrange(256)))
    return data[:i] + bytes([value]) + data[i + 1 :]


def _integer(rng: Random, data: bytes) -> bytes:
    i, value = rng.randint(0, len(data)), integer_bytes(rng)
    return data[:i] + value + data[i + len(value) :]


def _add_to_integer(rng: Random, data: bytes) -> bytes:
    size, order = rng.choice((1, 2, 4, 8)), rng.choice("<>")
    if len(data) < size:
        return data
    kind = {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
    i = rng.randint(0, len(data) - size)
    value = struct.unpack_from(order + kind, data, i)[0] + rng.randint(-16, 16)
    return data[:i] + struct.pack(order + kind, value % 2 ** (8 * size)) + data[i + size :]


def _insert(rng: Random, data: bytes) -> bytes:
    i = rng.randint(0, len(data))
    return data[:i] + rng.randbytes(rng.choice((1, 2, 4, 16))) + data[i:]


def _delete(rng: Random, data: bytes) -> bytes:
    start, end = _slice(rng, data)
    return data[:start] + data[end:]


def _duplicate(rng: Random, data: bytes) -> bytes:
    start, end = _slice(rng, data)
    times = rng.choice((1, 1, 2, 10, 1000))
    return data[:end] + (data[start:end] * times)[:MAX_BYTES] + data[end:]


def _move(rng: Random, data: bytes) -> bytes:
    start, end = _slice(rng, data)
    rest = data[:start] + data[end:]
    i = rng.randint(0, len(rest))
    return rest[:i] + data[start:end] + rest[i:]


def _truncate(rng: Random, data: bytes) -> bytes:
    return data[: rng.randint(0, len(data))]


def _word(rng: Random, tokens: Sequence[bytes]) -> bytes:
    return rng.choice(rng.choice((tokens, ODD_TEXT, NUMBERS)))


def _put_token(rng: Random, data: bytes, tokens: Sequence[bytes]) -> bytes:
    i = rng.randint(0, len(data))
    return data[:i] + _word(rng, tokens) + data[i:]


def _swap_token(rng: Random, data: bytes, tokens: Sequence[bytes]) -> bytes:
    there = [token for token in tokens if token and token in data]
    if not there:
        return _put_token(rng, data, tokens)
    old = rng.choice(there)
    i = rng.choice([match.start() for match in re.finditer(re.escape(old), data)])
    return data[:i] + _word(rng, tokens) + data[i + len(old) :]


def _swap_number(rng: Random, data: bytes, tokens: Sequence[bytes]) -> bytes:
    there = list(_NUMBER.finditer(data))
    if not there:
        return _put_token(rng, data, tokens)
    found = rng.choice(there)
    return data[: found.start()] + rng.choice(NUMBERS) + data[found.end() :]


def _lines(rng: Random, data: bytes, tokens: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.randrange(5)
    if change == 0:
        del lines[i]
    elif change == 1:
        lines.insert(j, lines[i])
    elif change == 2:
        lines[i], lines[j] = lines[j], lines[i]
    elif change == 3:
        many = min(rng.choice((10, 1000, 50_000)), MAX_BYTES // (len(lines[i]) + 1))
        lines[i:i] = [lines[i]] * many
    else:
        lines[i] = lines[i] * rng.choice((2, 10, 1000))
    return b"\n".join(lines)


_BYTES = (
    _flip,
    _set,
    _integer,
    _add_to_integer,
    _insert,
    _delete,
    _duplicate,
    _move,
    _truncate,
)
_TEXT = (_put_token, _swap_token, _swap_token, _swap_number, _swap_number, _lines)
