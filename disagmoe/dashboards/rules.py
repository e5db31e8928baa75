"""Recording and alert rules as data, and as Prometheus reads them."""

from collections.abc import Iterator
from dataclasses import dataclass

from disagmoe.dashboards.promql import BUBBLE, against_median, kinds, mfu, of, rate, share
from disagmoe.metrics import catalogue
from disagmoe.metrics.discovery import JOB
from disagmoe.schedule.accounting import BUSY, EXPOSED, Kind

_WINDOW = "5m"
_STAGE, _WORKER = "run, stage", "run, stage, instance"


@dataclass(frozen=True, slots=True)
class Record:
    """A series that Prometheus works out all the time."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Fires where `value` compares with `limit` as `comparison` says, for as long as `wait`."""

    name: str
    value: str
    """An expression that has values whether it fires or not."""
    comparison: str
    limit: str
    wait: str
    severity: str
    summary: str
    """In one line; labels as `{{ $labels.run }}`."""
    remedy: str

    @property
    def expr(self) -> str:
        """What fires."""
        return f"{self.value} {self.comparison} {self.limit}"

    @property
    def expr_as_number(self) -> str:
        """1 where it fires, 0 elsewhere."""
        return f"{self.value} {self.comparison} bool {self.limit}"


def _share(chosen: frozenset[Kind], by: str) -> str:
    return share(chosen, by, "", _WINDOW)


RECORDS: tuple[Record, ...] = (
    Record("stage:disagmoe_utilisation:ratio_rate5m", _share(BUSY, _STAGE)),
    Record("stage:disagmoe_exposed_communication:ratio_rate5m", _share(EXPOSED, _STAGE)),
    Record("stage:disagmoe_bubble:ratio_rate5m", _share(BUBBLE, _STAGE)),
    Record(
        "instance:disagmoe_compute_seconds:rate5m",
        rate(catalogue.SECONDS, _WORKER, kinds([Kind.COMPUTE]), _WINDOW),
    ),
    Record("run:disagmoe_tokens:rate5m", rate(catalogue.TOKENS, "run", "", _WINDOW)),
    Record("run:disagmoe_mfu:ratio_rate5m", mfu("", _WINDOW)),
)

ALERTS: tuple[Alert, ...] = (
    Alert(
        name="DisagMoEStageStalled",
        value=f"time() - max by ({_STAGE}) ({of(catalogue.LAST_PROGRESS, '')})",
        comparison=">",
        limit="120",
        wait="0s",
        severity="critical",
        summary="No worker of {{ $labels.stage }} of {{ $labels.run }} has begun an instruction "
        "for 2 minutes",
        remedy="disagmoe status RUN_DIR --stacks shows where each worker is. The stage that is "
        "not waiting for others is the cause.",
    ),
    Alert(
        name="DisagMoEWorkerDown",
        value=f'up{{job="{JOB}"}}',
        comparison="==",
        limit="0",
        wait="1m",
        severity="critical",
        summary="{{ $labels.instance }} of {{ $labels.run }} on {{ $labels.host }} does not answer",
        remedy="A worker that has died is started again; where this alert stays, its node is gone "
        "or Prometheus cannot reach it.",
    ),
    Alert(
        name="DisagMoEBubbleHigh",
        value="stage:disagmoe_bubble:ratio_rate5m",
        comparison=">",
        limit="0.3",
        wait="10m",
        severity="warning",
        summary="{{ $labels.stage }} of {{ $labels.run }} waits for other stages in "
        "{{ $value | humanizePercentage }} of its time",
        remedy="The stage with the highest utilisation is the bottleneck: give it more workers, "
        "or use more micro-batches in flight.",
    ),
    Alert(
        name="DisagMoEStraggler",
        value=against_median("instance:disagmoe_compute_seconds:rate5m"),
        comparison=">",
        limit="1.3",
        wait="10m",
        severity="warning",
        summary="{{ $labels.instance }} of {{ $labels.run }} computes {{ $value | humanize }} "
        "times as long as the median of its stage",
        remedy="Its host is slow or shared, or its part is too large (parallel.attention_shares, "
        "parallel.expert_shares, expert load).",
    ),
    Alert(
        name="DisagMoEExpertImbalance",
        value=f"max by (run) (avg_over_time({of(catalogue.EXPERT_LOAD, '')}[{_WINDOW}]))",
        comparison=">",
        limit="4",
        wait="10m",
        severity="warning",
        summary="The busiest expert of a layer of {{ $labels.run }} has {{ $value | humanize }} "
        "times the mean load",
        remedy="See the dashboard of experts for the layer; raise train.loss.aux_coef.",
    ),
    Alert(
        name="DisagMoEThroughputDrop",
        value="run:disagmoe_tokens:rate5m / avg_over_time(run:disagmoe_tokens:rate5m[1h])",
        comparison="<",
        limit="0.7",
        wait="10m",
        severity="warning",
        summary="{{ $labels.run }} trains at less than 70 % of its pace of the last hour",
        remedy="Compare utilisation, exposed communication and bubble of the stages before and "
        "now.",
    ),
    Alert(
        name="DisagMoELossNaN",
        value=of(catalogue.LOSS, ""),
        comparison="!=",
        limit=of(catalogue.LOSS, ""),
        wait="0s",
        severity="critical",
        summary="The loss of {{ $labels.run }} is not a number",
        remedy="Updates are skipped as long as it is; logs name the worker and its gradients.",
    ),
    Alert(
        name="DisagMoECheckpointStale",
        value=f"(time() - {of(catalogue.LAST_CHECKPOINT, '')}) * on (run) "
        f"clamp_max({of(catalogue.CHECKPOINTS, '')}, 1)",
        comparison=">",
        limit="7200",
        wait="0s",
        severity="warning",
        summary="{{ $labels.run }} has not completed a checkpoint for "
        "{{ $value | humanizeDuration }}",
        remedy="Look for errors of the store in logs/; what was done since then would be lost.",
    ),
    Alert(
        name="DisagMoERestartLoop",
        value=f"sum by (run) (increase({of(catalogue.RESTARTS, '')}[1h]))",
        comparison=">",
        limit="2.5",  # three: Prometheus extrapolates two to a little more
        wait="0s",
        severity="critical",
        summary='{{ $labels.run }} was restarted {{ $value | printf "%.0f" }} times within an hour',
        remedy="One more failure may end it (recovery.max_failures). The causes are on the "
        "dashboard of faults; the first error of each is in logs/driver.log.",
    ),
)

_HEADER = "# Written by `disagmoe dashboards write`; do not edit.\n"


def recording_yaml() -> str:
    """Return the file of recording rules."""
    return "\n".join([_HEADER + "groups:", "  - name: disagmoe", "    rules:", *_records()]) + "\n"


def alerting_yaml() -> str:
    """Return the file of alert rules."""
    return (
        "\n".join([_HEADER + "groups:", "  - name: disagmoe-alerts", "    rules:", *_alerts()])
        + "\n"
    )


def _records() -> Iterator[str]:
    for rule in RECORDS:
        yield f"      - record: {rule.name}"
        yield f"        expr: {_quoted(rule.expr)}"


def _alerts() -> Iterator[str]:
    for alert in ALERTS:
        yield f"      - alert: {alert.name}"
        yield f"        expr: {_quoted(alert.expr)}"
        yield f"        for: {alert.wait}"
        yield "        labels:"
        yield f"          severity: {alert.severity}"
        yield "        annotations:"
        yield f"          summary: {_quoted(alert.summary)}"
        yield f"          description: {_quoted(alert.remedy)}"


def _quoted(text: str) -> str:
    """YAML in single quotes has one escape only."""
    return "'" + text.replace("'", "''") + "'"
