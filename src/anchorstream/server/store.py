"""Conversations on disk: an index in SQLite, and stream files. Knows tokens and bytes, no engine.

Each finished turn is journaled as its tokens, which takes a millisecond, before the client is told that it is finished.
A stream's file is written seldom, and holds the stream as it was before its last turn: file and journal together give
back the conversation, and its last turn can still be taken back. Since a stream's state does not depend on how it was
fed, what comes back is the same to the bit.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import RLock

import numpy as np

from anchorstream.cache import snapshot
from anchorstream.cache.snapshot import Snapshot
from anchorstream.config import StreamConfig, make
from anchorstream.errors import AnchorstreamError, SnapshotError, StorageError

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, named INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL, pinned BLOB NOT NULL,
    start BLOB NOT NULL, config TEXT NOT NULL, file TEXT, saved_turns INTEGER NOT NULL, saved_length INTEGER NOT NULL,
    saved_begun INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (
    session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, number INTEGER NOT NULL, before BLOB NOT NULL,
    asked BLOB NOT NULL, heads TEXT NOT NULL, prompt BLOB NOT NULL, reply BLOB NOT NULL, begins TEXT NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn as its tokens.

    Attributes:
        number: counted from 0.
        before: hash of the conversation before it.
        asked: hash with what was asked.
        heads: hashes with the reply, as clients may send it back.
        prompt, reply: ids that the stream has consumed.
        begins: places in the prompt at which turns begin.
    """

    number: int
    before: bytes
    asked: bytes
    heads: tuple[bytes, ...]
    prompt: np.ndarray
    reply: np.ndarray
    begins: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the turn."""
        return len(self.prompt) + len(self.reply)


@dataclass(slots=True, kw_only=True)
class SessionRecord:
    """A conversation on disk.

    Attributes:
        id: its name. named: whether a client has named it.
        created, used: seconds since 1970.
        pinned: ids of the system prompt.
        start: hash of the system prompt.
        config: of its stream.
        file: of its stream, or None.
        saved_turns, saved_length, saved_begun: turns and tokens that the file holds, and turns of a user begun in it.
        turns: those that come after.
    """

    id: str
    named: bool
    created: float
    used: float
    pinned: np.ndarray
    start: bytes
    config: StreamConfig
    file: str | None = None
    saved_turns: int = 0
    saved_length: int = 0
    saved_begun: int = 0
    turns: list[TurnRecord] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens that the stream has consumed."""
        return (self.saved_length or len(self.pinned)) + sum(turn.num_tokens for turn in self.turns)


class Store:
    """Conversations in a folder. Thread-safe.

    Args:
        folder: made if need be; those of one model lie in a folder of their own.
        fingerprint: of the model.

    Raises:
        StorageError: the folder cannot be used, or another server uses it.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._lock = RLock()
        self._fingerprint = fingerprint
        self._folder = folder / fingerprint[:16]
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._database = sqlite3.connect(
                self._folder / "index.sqlite", check_same_thread=False, isolation_level=None, timeout=1
            )
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("PRAGMA foreign_keys = ON")
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise StorageError(f"{self._folder} was written by another version: name another folder, or empty it")
            self._database.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                self._database.execute(statement)
            self._database.execute(f"PRAGMA user_version = {_VERSION}")
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StorageError(f"another server keeps its sessions in {folder}: name another folder") from None
            raise StorageError(f"sessions cannot be kept in {folder}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise StorageError(f"{self._folder / 'index.sqlite'} is damaged: {error}; move it away") from None
        except OSError as error:
            raise StorageError(f"sessions cannot be kept in {folder}: {error.strerror or error}") from None
        self._sweep()

    def records(self) -> list[SessionRecord]:
        """All conversations, the least recently used first; what cannot be read is left out."""
        with self._lock:
            rows = self._database.execute("SELECT * FROM sessions ORDER BY used").fetchall()
            found = []
            for row in rows:
                try:
                    found.append(self._record(row))
                except (AnchorstreamError, ValueError, TypeError, KeyError):
                    self.delete(row[0])
            return found

    def add_turn(self, record: SessionRecord, turn: TurnRecord) -> None:
        """Journal a turn of a conversation that is there.

        Raises:
            StorageError: it could not be written.
        """
        with self._lock, self._transaction():
            self._database.execute("UPDATE sessions SET used = ? WHERE id = ?", (time.time(), record.id))
            self._insert(record.id, turn)

    def put(self, record: SessionRecord) -> None:
        """Write a conversation and its journal, instead of what was there under its name.

        Raises:
            StorageError: it could not be written; what was there before still is.
        """
        with self._lock:
            row = self._database.execute("SELECT file FROM sessions WHERE id = ?", (record.id,)).fetchone()
            with self._transaction():
                self._database.execute("DELETE FROM sessions WHERE id = ?", (record.id,))
                self._database.execute(
                    "INSERT INTO sessions VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                    (
                        record.id,
                        record.named,
                        record.created,
                        record.used,
                        record.pinned.astype("<i4").tobytes(),
                        record.start,
                        json.dumps(asdict(record.config)),
                        record.file,
                        record.saved_turns,
                        record.saved_length,
                        record.saved_begun,
                    ),
                )
                for turn in record.turns:
                    self._insert(record.id, turn)
            if row is not None and row[0] != record.file:
                self.unlink(row[0])

    def write(self, saved: Snapshot) -> str:
        """Write a stream's file; its name.

        Raises:
            StorageError: it could not be written.
        """
        name = f"{secrets.token_hex(16)}.stream"
        snapshot.write(self._folder / name, saved)
        return name

    def replace_file(self, session: str, name: str, turns: int, length: int, begun: int) -> None:
        """A conversation's file is now another one, which holds the first `turns` turns: forget their journal.

        Raises:
            StorageError: it could not be written; the old one is still there.
        """
        with self._lock:
            row = self._database.execute("SELECT file FROM sessions WHERE id = ?", (session,)).fetchone()
            if row is None:  # deleted meanwhile
                self.unlink(name)
                return
            with self._transaction():
                self._database.execute(
                    "UPDATE sessions SET file = ?, saved_turns = ?, saved_length = ?, saved_begun = ? WHERE id = ?",
                    (name, turns, length, begun, session),
                )
                self._database.execute("DELETE FROM turns WHERE session = ? AND number < ?", (session, turns))
            self.unlink(row[0])

    def link(self, name: str) -> str | None:
        """The same file under a name of its own, for another conversation; None if it is gone."""
        other = f"{secrets.token_hex(16)}.stream"
        try:
            os.link(self._folder / name, self._folder / other)
        except OSError:
            return None
        return other

    def load(self, name: str) -> Snapshot:
        """Read and check a stream's file.

        Raises:
            SnapshotError, StorageError.
        """
        return snapshot.read(self._folder / name, self._fingerprint)

    def delete(self, session: str) -> None:
        """Forget a conversation."""
        with self._lock:
            row = self._database.execute("SELECT file FROM sessions WHERE id = ?", (session,)).fetchone()
            with self._transaction():
                self._database.execute("DELETE FROM sessions WHERE id = ?", (session,))
            if row is not None:
                self.unlink(row[0])

    def close(self) -> None:
        """Let go of the folder."""
        with self._lock:
            self._database.close()

    def _transaction(self) -> _Transaction:
        return _Transaction(self._database)

    def _insert(self, session: str, turn: TurnRecord) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO turns VALUES (?,?,?,?,?,?,?,?)",
            (
                session,
                turn.number,
                turn.before,
                turn.asked,
                json.dumps([head.hex() for head in turn.heads]),
                turn.prompt.astype("<i4").tobytes(),
                turn.reply.astype("<i4").tobytes(),
                json.dumps(list(turn.begins)),
            ),
        )

    def _record(self, row: tuple) -> SessionRecord:
        identity, named, created, used, pinned, start, config, file, saved_turns, saved_length, saved_begun = row
        rows = self._database.execute("SELECT * FROM turns WHERE session = ? ORDER BY number", (identity,)).fetchall()
        turns = [
            TurnRecord(
                number=number,
                before=before,
                asked=asked,
                heads=tuple(bytes.fromhex(head) for head in json.loads(heads)),
                prompt=np.frombuffer(prompt, "<i4").astype(np.int32),
                reply=np.frombuffer(reply, "<i4").astype(np.int32),
                begins=tuple(json.loads(begins)),
            )
            for _, number, before, asked, heads, prompt, reply, begins in rows
        ]
        if [turn.number for turn in turns] != list(range(saved_turns, saved_turns + len(turns))) or not turns:
            raise SnapshotError("turns are missing")
        if file is not None and not (self._folder / file).is_file():
            raise SnapshotError("its file is missing")
        return SessionRecord(
            id=identity,
            named=bool(named),
            created=created,
            used=used,
            pinned=np.frombuffer(pinned, "<i4").astype(np.int32),
            start=start,
            config=make(StreamConfig, json.loads(config)),
            file=file,
            saved_turns=saved_turns,
            saved_length=saved_length,
            saved_begun=saved_begun,
            turns=turns,
        )

    def _sweep(self) -> None:
        """Remove files that no conversation names: of a crash between writing and noting it."""
        with self._lock:
            known = {name for (name,) in self._database.execute("SELECT file FROM sessions WHERE file IS NOT NULL")}
        for path in self._folder.iterdir():
            if (path.suffix == ".stream" and path.name not in known) or path.name.startswith("."):
                self.unlink(path.name)

    def unlink(self, name: str | None) -> None:
        """Remove a stream's file."""
        if name is not None:
            (self._folder / name).unlink(missing_ok=True)


class _Transaction:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise StorageError(f"the sessions' index cannot be written: {error}") from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._database.execute("ROLLBACK" if kind else "COMMIT")
        except sqlite3.Error as failed:
            raise StorageError(f"the sessions' index cannot be written: {failed}") from None
        if isinstance(error, sqlite3.Error):
            raise StorageError(f"the sessions' index cannot be written: {error}") from None
