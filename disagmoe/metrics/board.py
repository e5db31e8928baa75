"""The values of one process by the catalogue: changed by its own thread, read by scrapes."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from disagmoe.metrics.catalogue import IDENTITY, Metric, Type

_Values = dict[tuple[str, ...], float]


class Board(Collector):
    """Values of the metrics of one process, in a registry of its own."""

    def __init__(self, identity: Mapping[str, str]) -> None:
        """`identity` has a value for each label of `IDENTITY`."""
        if tuple(identity) != IDENTITY:
            raise AssertionError(f"{tuple(identity)} are other labels than {IDENTITY}")
        self._identity = tuple(identity.values())
        self._lock = threading.RLock()
        self._values: dict[Metric, _Values] = {}
        self._live: dict[Metric, Callable[[], float]] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    @contextmanager
    def changes(self) -> Iterator[None]:
        """Let scrapes see all changes in the block, or none."""
        with self._lock:
            yield

    def add(self, metric: Metric, amount: float, **labels: str) -> None:
        """Count `amount`, which may be 0 so that the series is there from the beginning."""
        if metric.type is not Type.COUNTER or amount < 0:
            raise AssertionError(f"{metric.name} does not take {amount}")
        key = _key(metric, labels)
        with self._lock:
            values = self._values.setdefault(metric, {})
            values[key] = values.get(key, 0.0) + amount

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        if metric.type is not Type.GAUGE:
            raise AssertionError(f"{metric.name} is a {metric.type}")
        key = _key(metric, labels)
        with self._lock:
            self._values.setdefault(metric, {})[key] = value

    def ask(self, metric: Metric, value: Callable[[], float]) -> None:
        """Read a gauge without labels from `value` at each scrape, in the thread of the scrape."""
        self._live[metric] = value

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield what is there, for prometheus_client."""
        with self._lock:
            values = {metric: dict(found) for metric, found in self._values.items()}
        values |= {metric: {(): value()} for metric, value in self._live.items()}
        for metric, found in values.items():
            names = (*IDENTITY, *metric.labels)
            family: CounterMetricFamily | GaugeMetricFamily
            if metric.type is Type.COUNTER:
                family = CounterMetricFamily(
                    metric.family, metric.doc, labels=names, unit=metric.named_unit
                )
            else:
                family = GaugeMetricFamily(
                    metric.family, metric.doc, labels=names, unit=metric.named_unit
                )
            for labels, value in found.items():
                family.add_metric((*self._identity, *labels), value)
            yield family


def _key(metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
    if labels.keys() != set(metric.labels):
        raise AssertionError(f"{metric.name} has labels {metric.labels}, not {tuple(labels)}")
    return tuple(labels[name] for name in metric.labels)
