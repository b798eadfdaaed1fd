"""`nanoserve bench boots`: predictions against recorded boots, printed."""

import json
from pathlib import Path

from nanoserve.bench.boot_errors import examine, read_configs, read_records
from nanoserve.bench.boot_table import report_as_dict, report_lines


def print_boots(records_path: Path, configs_path: Path | None, *, as_json: bool) -> None:
    """Examine every record of a file and print the comparison.

    Raises:
        OptionError: A file is not there, or may not be read.
        CorruptFileError: A file is no text, or a line of it is no record.
    """
    configs = read_configs(configs_path)
    reports = [examine(record, configs) for record in read_records(records_path)]
    if as_json:
        print(json.dumps(report_as_dict(reports), indent=1))
        return
    print("\n".join(report_lines(reports)))
