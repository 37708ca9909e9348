"""Changes that keep what surrounds them valid: JSON, safetensors, NumPy headers, zip members.

A changed byte mostly ends at the first check. These changes get past it: lengths, checksums and
hashes are made to fit again.
"""

import hashlib
import io
import json
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz.mutations import INTEGERS, MAX_BYTES, mutated

ODD_VALUES = (
    None, True, False, "", "x", "../x", "\ud800", "none", "auto", [], {}, [[]], [None],
    {"": 0}, 0.5, -0.5, 1e308, 5e-324, *INTEGERS, [1] * 50, ["x"] * 50, [0, 0], "a" * 10_000,
)  # fmt: skip
RAW_JSON = (
    "NaN", "Infinity", "-Infinity", "1e999", "9" * 4000, "9" * 5000, "[" * 5000 + "]" * 5000,
    "[" * 200_000, '{"a":' * 5000 + "1" + "}" * 5000, '{"a":1,"a":2}', "", "//", "'x'", "01",
    '"\\ud800"', '"\\u0000"', '"\x01"', "1.", "-", "nul",
)  # fmt: skip
_RAW = "<raw {}>"

NPY_DESCR = (
    "<f8", "<f4", "<f2", "<f16", ">f8", "<i8", "|i1", "<u8", "|b1", "<U3", "<U0", "<U100000",
    "|S0", "|S5", "|O", "|V8", "<M8[ns]", "<m8", "<c16", "<f3", "x", "", "<U2147483647",
    "(3,)f8",
)  # fmt: skip
NPY_TOKENS = (
    b"'descr'", b"'fortran_order'", b"'shape'", b"True", b"False", b"(3,)", b"()", b"(0,)",
    b"1L", b"'|O'", b"'<f8'", b"lambda: 0", b"{", b"}", b"(" * 200, b"[('a', '<f8')]",
    b"\x93NUMPY", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"1if 1else 2", b"'\\d'",
)  # fmt: skip


def changed_json(rng: Random, value: Any) -> str:
    """JSON text of a value, with something inside it changed."""
    value = json.loads(json.dumps(value))
    raw: dict[str, str] = {}
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            break
        inside, key = rng.choice(places)
        change = rng.randrange(8)
        if change < 3:
            inside[key] = json.loads(json.dumps(rng.choice(ODD_VALUES)))  # a copy of its own
        elif change == 3 and isinstance(inside[key], int | float):
            inside[key] = rng.choice((-1, 2, 0.5)) * inside[key] + rng.choice((-1, 0, 1))
        elif change == 4:
            raw[name := _RAW.format(len(raw))] = rng.choice(RAW_JSON)
            inside[key] = name
        elif change == 5:
            del inside[key]
        elif change == 6:
            other, name = rng.choice(places)
            inside[key] = json.loads(
                json.dumps(other.get(name) if isinstance(other, dict) else 0)
            )
        elif isinstance(inside, dict):
            inside[rng.choice(("x", "", str(key) + "x", "0", "-1"))] = inside.pop(key)
        else:
            times = MAX_BYTES // (len(json.dumps(inside[key])) + 2)
            inside.extend([inside[key]] * min(times, rng.choice((1, 10, 1000))))
    text = json.dumps(value)
    for name, put in raw.items():
        text = text.replace(json.dumps(name), put)
    return text


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place inside a JSON value that can hold another."""
    found, waiting = [], [value]
    while waiting:
        inside = waiting.pop()
        keys = list(inside) if isinstance(inside, dict) else range(min(len(inside), 20))
        for key in keys:
            found.append((inside, key))
            if isinstance(inside[key], dict | list):
                waiting.append(inside[key])
    return found


def changed_safetensors(rng: Random, data: bytes) -> bytes:
    """Header, header length or tensors changed; the length mostly fits."""
    (length,) = struct.unpack_from("<Q", data)
    header, body = data[8 : 8 + length], data[8 + length :]
    change = rng.randrange(6)
    if change < 3:
        header = changed_json(rng, json.loads(header)).encode("utf-8", "replace")
    elif change == 3:
        header = mutated(
            rng, header, tokens=(b"F32", b"I64", b"BOOL", b"F8_E4M3", b"data_offsets")
        )
    elif change == 4:
        body = mutated(rng, body)
    else:
        header = _with_shapes(rng, header)
    said = len(header) if rng.random() < 0.9 else rng.choice(INTEGERS) % 2**64
    return struct.pack("<Q", said) + header + body


def _with_shapes(rng: Random, header: bytes) -> bytes:
    """Another shape or kind for some tensors, of the same number of bytes or not."""
    tensors = json.loads(header)
    for name in rng.sample(sorted(tensors), min(len(tensors), rng.choice((1, 1, 3)))):
        entry = tensors[name]
        if name == "__metadata__":
            continue
        shape = entry["shape"]
        entry["shape"] = rng.choice(
            (
                shape[::-1],
                [*shape, 1],
                [1, *shape],
                [0, *shape],
                shape[:1],
                [],
                [*shape, 10**12],
            )
        )
        entry["dtype"] = rng.choice(
            (entry["dtype"], "F32", "F64", "I64", "I32", "U8", "F16", "BF16")
        )
    return json.dumps(tensors).encode()


def changed_npy(rng: Random, data: bytes) -> bytes:
    """Another header over the same values, or other bytes."""
    if rng.random() < 0.3 or not data.startswith(b"\x93NUMPY") or len(data) < 10:
        return mutated(rng, data, tokens=NPY_TOKENS)
    (length,) = struct.unpack_from("<H", data, 8)
    header, body = data[10 : 10 + length], data[10 + length :]
    if rng.random() < 0.5:
        descr = f"'descr': {rng.choice(NPY_DESCR)!r}".encode()
        header = re.sub(rb"'descr': '[^']*'", lambda _: descr, header)
    if rng.random() < 0.5:
        sizes = [rng.choice(INTEGERS) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 40)))]
        header = re.sub(rb"'shape': \([^)]*\)", f"'shape': {tuple(sizes)}".encode(), header)
    if rng.random() < 0.3:
        header = mutated(rng, header, tokens=NPY_TOKENS)
    if rng.random() < 0.3:
        body = mutated(rng, body)
    if rng.random() < 0.5:
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) % 65536) + header + body
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header + body


def changed_zip(rng: Random, data: bytes, change: Callable[[Random, bytes], bytes]) -> bytes:
    """Members changed, and packed again with checksums that fit."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in range(rng.choice((1, 1, 2))):
        i = rng.randrange(len(members))
        name, content = members[i]
        step = rng.randrange(10)
        if step < 6:
            members[i] = name, change(rng, content)
        elif step == 6:
            del members[i]
        elif step == 7:
            members.append(
                (rng.choice((name, "../" + name, name.removesuffix(".npy"))), content)
            )
        elif step == 8:
            members[i] = name, rng.choice(members)[1]
        else:
            members[i] = name, content + b"\0" * rng.choice((1, 10**3, 10**5, 3 * 10**6))
        if not members:
            break
    packed = io.BytesIO()
    method = rng.choice(
        (zipfile.ZIP_STORED, *[zipfile.ZIP_DEFLATED] * 3, zipfile.ZIP_BZIP2, 14)
    )
    with warnings.catch_warnings(), zipfile.ZipFile(packed, "w") as archive:
        warnings.simplefilter("ignore")  # two members of one name are what is wanted
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.compress_type, info._compresslevel = method, 1
            with archive.open(info, "w") as stream:
                stream.write(content)
    result = packed.getvalue()
    if rng.random() < 0.3:  # sizes, offsets and methods told by the directory
        start = max(0, result.find(b"PK\x01\x02"))
        result = result[:start] + mutated(rng, result[start:])
    return result if len(result) <= MAX_BYTES else data


def changed_model(rng: Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """A model folder with one of its files changed; hashes are made anew, mostly."""
    manifest = json.loads(files["manifest.json"])
    contents = {role: files[entry["name"]] for role, entry in manifest["files"].items()}
    change = rng.randrange(10)
    if change < 5:
        text = changed_json(rng, json.loads(contents["model"]))
        contents["model"] = text.encode("utf-8", "replace")
    elif change < 8:
        contents["weights"] = changed_safetensors(rng, contents["weights"])
    else:
        role = rng.choice(sorted(contents))
        contents[role] = mutated(rng, contents[role])
    found = {}
    for role, content in contents.items():
        digest = hashlib.sha256(content).hexdigest()
        name = f"{role}-{digest[:12]}{'.json' if role == 'model' else '.safetensors'}"
        manifest["files"][role] = {"name": name, "bytes": len(content), "sha256": digest}
        found[name] = content
    text = json.dumps(manifest)
    if rng.random() < 0.1:
        text = changed_json(rng, manifest)
    found["manifest.json"] = text.encode("utf-8", "replace")
    if rng.random() < 0.05:
        name = rng.choice(sorted(found))
        found[name] = mutated(rng, found[name])
    return found
