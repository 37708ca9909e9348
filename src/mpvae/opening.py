"""Opening what should be a file, and may be anything."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened to be read.

    Raises
    ------
    OSError
        If it cannot be opened, or is something else: a folder; a pipe, which would be waited
        for; a device, which may have no end.
    """
    wait_for_nobody = getattr(os, "O_NONBLOCK", 0)  # opening a pipe waits for who writes to it
    handle = os.open(path, os.O_RDONLY | wait_for_nobody | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe, a socket or a device", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise
