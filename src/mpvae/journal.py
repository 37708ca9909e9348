"""Trials on disk: Optuna's journal in a folder, lines of JSON; nothing pickled is opened."""

from pathlib import Path
from typing import TYPE_CHECKING

from mpvae.errors import ConfigError

if TYPE_CHECKING:
    from optuna.storages import JournalStorage

JOURNAL = "journal.jsonl"
MAX_BYTES = 64 * 1024**2


def open_journal(folder: Path) -> "JournalStorage":
    """Optuna's storage in a folder; a line that was cut short, as by a crash, is dropped."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    path = folder / JOURNAL
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder for the search")
    if folder.is_dir() and not path.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} holds other files; give a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size if path.exists() else 0
    if size > MAX_BYTES:
        raise ConfigError(
            f"{path} has {size} bytes, more than the limit of {MAX_BYTES}; give another folder"
        )
    lock = JournalFileOpenLock(str(path))
    lock.acquire()
    try:
        _drop_torn_line(path)
    finally:
        lock.release()
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise ConfigError(f"{path} is damaged; give another folder") from error


def _drop_torn_line(path: Path) -> None:
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as stream:
            stream.truncate(whole)
