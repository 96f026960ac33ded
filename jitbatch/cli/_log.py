"""The log of a run, for people and programs: a record in each line, a table of epochs, a picture of the curve."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from jitbatch.cli._errors import CommandError
from jitbatch.cli._files import write_whole

RECORDS, TABLE, PICTURE = "log.jsonl", "epochs.csv", "curve.png"


class Log:
    """The records of a run, which are also lines of a file; without a directory they are not."""

    def __init__(self, directory: Path | None):
        self._directory = directory
        self.records: list[dict[str, Any]] = []

    def resume(self, step: int, epoch: int) -> None:
        """Continue the log of an earlier process, without its records after the resumed checkpoint."""
        if self._directory is None:
            return
        path = self._directory / RECORDS
        lines = path.read_bytes().splitlines() if path.exists() else []
        for line_number, line in enumerate(lines, 1):
            record = _record(line)
            if record is None:
                if line_number == len(lines):  # cut off where the process was killed
                    break
                raise CommandError(
                    f"{path}, line {line_number}: not a record of `jitbatch train`: {line[:80]!r}. Remove the line, or "
                    "move the file away, and resume again"
                )
            if record["step"] <= step and (record["kind"] == "step" or record["epoch"] <= epoch):
                self.records.append(record)
        write_whole(path, "".join(json.dumps(record) + "\n" for record in self.records).encode())

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if self._directory is None:
            return
        with open(self._directory / RECORDS, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def summarise(self) -> None:
        """Write the table and the picture of all epochs so far."""
        epochs = [record for record in self.records if record["kind"] == "epoch"]
        if epochs and self._directory is not None:
            write_table(epochs, self._directory / TABLE)
            draw_curve(epochs, self._directory / PICTURE)


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a line. None if a run did not write the line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("kind") not in ("step", "epoch", "final"):
        return None
    fields = [record.get("step"), record.get("epoch")]
    if record["kind"] == "epoch":
        fields += [record.get("loss"), record.get("samples_per_second")]
        for name in ("dev", "seconds"):
            values = record.get(name)
            fields += values.values() if isinstance(values, dict) and values else [None]
    return record if all(type(value) in (int, float) for value in fields) else None


def write_table(epochs: list[dict[str, Any]], path: Path) -> None:
    rows = [
        {
            "epoch": epoch["epoch"],
            "step": epoch["step"],
            "loss": epoch["loss"],
            **{f"dev {name}": value for name, value in epoch["dev"].items()},
            "samples/s": round(epoch["samples_per_second"], 1),
            **{f"{work} s": round(seconds, 3) for work, seconds in epoch["seconds"].items()},
        }
        for epoch in epochs
    ]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def draw_curve(epochs: list[dict[str, Any]], path: Path) -> None:
    """The loss of training and the metrics of the development data, by epoch."""
    from matplotlib.figure import Figure

    epoch_ids = [epoch["epoch"] for epoch in epochs]
    metrics = list(epochs[0]["dev"])
    figure = Figure(figsize=(4 * (1 + len(metrics)), 3), layout="constrained")
    panels = figure.subplots(1, 1 + len(metrics))
    curves = [("training loss", [epoch["loss"] for epoch in epochs])]
    curves += [(f"dev {name}", [epoch["dev"][name] for epoch in epochs]) for name in metrics]
    for panel, (name, values) in zip(panels, curves, strict=True):
        panel.plot(epoch_ids, values, marker="o", markersize=3)
        panel.set_xlabel("epoch")
        panel.set_title(name)
        panel.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format="png")
    write_whole(path, picture.getvalue())
