"""Tests do not wait until a disk has stored what they write: no test cuts the power, and a commit takes 10 to 30 ms.

Importing this is enough, in any process, also for the databases that it opens.
"""

import os
import sqlite3
import sqlite3.dbapi2
from contextlib import suppress
from typing import Any

plain = sqlite3.connect


def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
    connection = plain(*arguments, **options)
    with suppress(sqlite3.Error):  # of a damaged file, its reader is to find it
        connection.execute("PRAGMA synchronous = OFF")
    return connection


os.fsync = lambda _: None
sqlite3.connect = sqlite3.dbapi2.connect = connect
