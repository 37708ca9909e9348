"""Readers that are as bad as can be, to see that the long run sees it."""

import ctypes
import time
from pathlib import Path
from random import Random

from fuzz.seeds import Files
from fuzz.targets import Target
from mpvae.errors import DataError


def _read(folder: Path) -> None:
    content = (folder / "zebra.bin").read_bytes()
    match content:
        case b"die":
            ctypes.string_at(0)
        case b"wait":
            time.sleep(10**6)
        case b"work":
            end = time.process_time() + 6
            while time.process_time() < end:
                pass
        case b"take":
            bytearray(2**31)
        case b"hide":
            try:
                bytearray(2**31)
            except MemoryError as error:
                raise DataError("zebra.bin cannot be read") from error
        case b"raise":
            raise KeyError("zebra")
        case b"refuse":
            raise DataError("zebra.bin cannot be read; write it anew")


WORDS = (b"die", b"wait", b"work", b"take", b"hide", b"raise", b"refuse", b"read")


def _change(rng: Random, files: Files, valid: list[Files]) -> Files:
    return {"zebra.bin": rng.choice(WORDS)}


CANARY = Target(lambda: [{"zebra.bin": b"read"}], _change, _read)
