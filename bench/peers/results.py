"""The file of results: one record for each round of each peer, written whole or not at all."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Results:
    """Records in a file.

    Attributes:
        records: In the order in which they were begun.
        earlier: Records that the file had, for how long each round took.
        put_aside: Where they are; None where there were none.
    """

    def __init__(self, path: Path, *, is_resumed: bool) -> None:
        self._path = path
        found: list[Record] = json.loads(path.read_text()) if path.exists() else []
        self.records: list[Record] = found if is_resumed else []
        self.earlier = found
        self.put_aside: Path | None = None
        if found and not is_resumed:
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            self.put_aside = path.with_stem(f"{path.stem}-{written:%Y%m%dT%H%M%SZ}")
            path.rename(self.put_aside)

    def round_of(self, peer: str, number: int) -> Record:
        """Return the record of a round of a peer; a new one where there is none."""
        for record in self.records:
            if (record["peer"], record["round"]) == (peer, number):
                return record
        record = {"peer": peer, "round": number, "figures": {}}
        self.records.append(record)
        return record

    def save(self) -> None:
        """Write the file; who reads it meanwhile sees the one before."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(self._path.name + ".part")
        beside.write_text(json.dumps(self.records, indent=1) + "\n")
        os.replace(beside, self._path)
