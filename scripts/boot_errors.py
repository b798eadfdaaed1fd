"""Print how far predictions are from recorded boots: `boot_errors.py FILE.jsonl`.

What needs no model's shape: tokens from a logged pool, the pool from the other logged
parts, concurrency from tokens, and what became of each boot.
"""

import sys
from collections import Counter
from pathlib import Path

from nanoserve.bench.boot_errors import compare_record, read_records, summarise
from nanoserve.plan.boot_outcome import name_outcome
from nanoserve.plan.boot_record import boot_of_record
from nanoserve.plan.text_table import table_lines


def main(path: Path) -> None:
    """Print every comparison, the errors by figure, and the outcomes."""
    records = read_records(path)
    comparisons = [one for record in records for one in compare_record(record)]
    rows = [("record", "figure", "predicted", "logged", "error")]
    for one in comparisons:
        sizes = (f"{one.predicted:,.2f}", f"{one.logged:,.2f}", f"{one.error:+.2%}")
        rows.append((one.record_id, one.figure, *sizes))
    print("\n".join(table_lines(rows)))
    for summary in summarise(comparisons):
        print(
            f"{summary.figure}: n {summary.num_records}, median {summary.median:.2%}, "
            f"95th percentile {summary.p95:.2%}, worst record {summary.worst.record_id}"
        )
    kinds = Counter(name_outcome(boot_of_record(record)).kind for record in records)
    print(f"outcomes of {len(records)}: {dict(kinds.most_common())}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
