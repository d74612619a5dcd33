"""Rows and the directory that holds them: results.jsonl (one row per line, flushed after every row) and results.csv.

A row describes itself: machine, commit, problem, method, and the result or the reason why there is none.
"""

import csv
import fcntl
import io
import json
import os
import pathlib
import statistics
from datetime import datetime, timezone

from tessera.lab.errors import UsageError

# The table of all fields, in their order: lab/measure/fields.json, which says what each means.
TABLE = [
    field
    for field in json.loads(pathlib.Path(__file__).with_name("fields.json").read_text(encoding="utf-8"))
    if "python" in field.get("programs", ["python"])
]
FIELDS = {field["name"]: field["default"] for field in TABLE}  # a row of which nothing is known
SCHEMA = FIELDS["schema"]

# The fields that identify a measurement; known before it is made.
KEY_FIELDS = tuple(field["name"] for field in TABLE if field["role"] == "key")

# The fields in which all rows of a file agree.
RUN_FIELDS = tuple(field["name"] for field in TABLE if field["role"] == "run")

EXPERIMENTS = ("training", "gpt", "peers")
STUDIES = "studies"  # writes rows of the experiments of `tessera lab`


def key_of(row):
    """Rows with the same key answer the same question."""
    return tuple(json.dumps(row[field]) for field in KEY_FIELDS)


def timing_fields(seconds):
    """The fields of a row that summarise measured times."""
    in_order = sorted(seconds)
    lower, middle, upper = statistics.quantiles(in_order, n=4, method="inclusive") if len(in_order) > 1 else in_order * 3
    values = {"median": middle, "lower_quartile": lower, "upper_quartile": upper, "min": in_order[0], "max": in_order[-1]}
    return {"repetitions": len(in_order)} | {f"{name}_ms": value * 1e3 for name, value in values.items()}


class Results:
    """The directory a run writes to. `stamp` holds what all its rows share: machine, device, commit, version, scale."""

    def __init__(self, directory, experiment, stamp, resume):
        self.directory = pathlib.Path(directory)
        self.path = self.directory / "results.jsonl"
        self.stamp = stamp | {"experiment": experiment}
        self.rows = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.file = open(self.path, "a+", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out '{directory}': cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"--out '{directory}': another run is writing there") from None
        self._keep()
        if not resume and any(experiment in (row["experiment"], STUDIES) for row in self.rows.values()):
            raise UsageError(
                f"--out '{directory}': has rows of {experiment} already; continue them with --resume or choose another directory"
            )
        self.csv = open(self.directory / "results.csv", "w", encoding="utf-8", newline="")
        self._write_csv(FIELDS.keys())
        for row in self.rows.values():
            self._write_csv(csv_cell(row[field]) for field in FIELDS)

    def _keep(self):
        """Reads the rows of the file, and cuts off a last line without an end: it was being written when a run was killed."""
        self.file.seek(0)
        text = self.file.read()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            os.ftruncate(self.file.fileno(), len(whole.encode()))
        for number, line in enumerate(whole.splitlines(), 1):
            where = f"{self.path}, line {number}"
            row = parse_row(line, where)
            if row["experiment"] not in EXPERIMENTS and self.stamp["experiment"] != STUDIES:
                raise UsageError(
                    f"{where}: another program measures '{row['experiment']}'; choose another --out "
                    "(tessera report draws several directories into one page)"
                )
            for field in RUN_FIELDS:
                here = self.stamp.get(field, FIELDS[field])
                if row[field] != here:
                    raise UsageError(
                        f"{where}: field '{field}' is {row[field]!r}, this run has {here!r}; "
                        "give the same options or choose another --out"
                    )
            self.rows[key_of(row)] = row

    def make(self, fields):
        """A whole row from known fields. Raises KeyError for a field that rows do not have."""
        unknown = fields.keys() - FIELDS.keys()
        if unknown:
            raise KeyError(f"rows have no fields {', '.join(sorted(unknown))}")
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return FIELDS | self.stamp | {"date": date, "load_average": os.getloadavg()[0]} | fields

    def find(self, fields):
        """The row that answers the same question, or None."""
        return self.rows.get(key_of(self.make(fields)))

    def write(self, fields):
        """Adds a row to both files at once and returns it."""
        row = self.make(fields)
        key = key_of(row)
        if key in self.rows:
            raise KeyError(f"this row is there already: {row}")
        # JSON has no NaN, and a loss that is NaN is no result.
        row = {field: None if value != value else value for field, value in row.items()}
        self.file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.file.flush()
        self._write_csv(csv_cell(row[field]) for field in FIELDS)
        self.rows[key] = row
        return row

    def _write_csv(self, cells):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self.csv.write(line.getvalue())
        self.csv.flush()

    def close(self):
        self.file.close()
        self.csv.close()


def csv_cell(value):
    """As `tessera lab` writes it: nothing for null, true and false in small letters."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value


def parse_row(line, where):
    """One row of a file. Raises UsageError, which says where and what is wrong."""
    try:
        row = json.loads(line)
    except ValueError:
        raise UsageError(f"{where}: is not JSON: '{line[:60]}'") from None
    if not isinstance(row, dict) or row.get("schema") != SCHEMA:
        raise UsageError(f"{where}: is not a row of schema {SCHEMA}")
    missing = FIELDS.keys() - row.keys() if row.get("experiment") in EXPERIMENTS or row.get("torch") else set()
    if missing:
        raise UsageError(f"{where}: has no field '{sorted(missing)[0]}', so it is of another version; choose another --out")
    return {"experiment": "unknown"} | row
