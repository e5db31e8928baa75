"""The catalogue keeps the conventions of Prometheus, and its own promises on labels."""

import re

from disagmoe.metrics import catalogue
from disagmoe.metrics.catalogue import (
    CATALOGUE,
    DISCOVERED,
    IDENTITY,
    Metric,
    Type,
    Unit,
    markdown,
)


def test_the_catalogue_holds_every_metric_once() -> None:
    defined = {value for value in vars(catalogue).values() if isinstance(value, Metric)}
    assert set(CATALOGUE) == defined
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)


def test_names_are_those_of_prometheus() -> None:
    for metric in CATALOGUE:
        assert re.fullmatch(r"disagmoe_[a-z]+(_[a-z]+)*", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.type is Type.COUNTER)
        assert metric.doc.endswith(".")


def test_names_tell_units_that_are_not_of_the_run_alone() -> None:
    for unit in (Unit.SECONDS, Unit.BYTES, Unit.BYTES_PER_S):
        for metric in CATALOGUE:
            named = re.search(rf"_{unit}(_total)?$", metric.name) is not None
            assert named == (metric.unit is unit), metric.name
            assert (metric.named_unit == unit) == named


def test_labels_are_bounded_and_leave_those_of_discovery_alone() -> None:
    taken = {*IDENTITY, *DISCOVERED, "job"}
    labels = {label for metric in CATALOGUE for label in metric.labels}
    assert labels & taken == set()
    assert labels == {"kind", "channel", "version", "python", "torch", "side", "layer", "cause"}


def test_the_docs_define_each_metric() -> None:
    lines = markdown().splitlines()
    for metric in CATALOGUE:
        (line,) = [line for line in lines if line.startswith(f"| `{metric.name}` |")]
        _, _, kind, unit, labels, doc, _ = (cell.strip() for cell in line.split("|"))
        assert (kind, unit, doc) == (metric.type, metric.unit.replace("_", " "), metric.doc)
        assert tuple(re.findall(r"\w+", labels)) == metric.labels
