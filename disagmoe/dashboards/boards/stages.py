"""What each worker does with its time, and what travels between stages."""

from disagmoe.dashboards.panel import Dashboard, Panel, Query, Row, Step, Unit, View
from disagmoe.dashboards.promql import RUN as _RUN
from disagmoe.dashboards.promql import against_median, kinds, of, rate, share
from disagmoe.metrics import catalogue
from disagmoe.schedule.accounting import BUSY, EXPOSED, Kind

_WORKER = "run, stage, instance"
_UTILISATION = (
    Step(None, "dark-red"),
    Step(0.3, "orange"),
    Step(0.5, "yellow"),
    Step(0.7, "green"),
    Step(0.9, "dark-green"),
)
_COMPUTE = rate(catalogue.SECONDS, _WORKER, f"{_RUN},{kinds([Kind.COMPUTE])}")
_SENT = rate(catalogue.CHANNEL_BYTES, "run, instance")
_SENT_ON = rate(catalogue.CHANNEL_BYTES, "run, channel")
_SENDERS = f"count by (run, channel) ({of(catalogue.CHANNEL_BYTES)})"
_OF_A_LINK = f"/ on (run) group_left () {of(catalogue.LINK_BYTES)}"
_BY_KIND = (
    f"{rate(catalogue.SECONDS, 'run, kind')} / on (run) group_left () "
    f"{rate(catalogue.SECONDS, 'run')}"
)

STAGES = Dashboard(
    uid="disagmoe-stages",
    title="DisagMoE / Stages",
    doc="Workers and channels: who waits for whom, and how full the links are.",
    rows=(
        Row(
            "Workers",
            (
                Panel(
                    title="Utilisation of each worker",
                    doc="Share of its time in which a worker computes, updates or reads data.",
                    queries=(Query(share(BUSY, _WORKER), "{{run}} {{instance}}"),),
                    view=View.STATES,
                    unit=Unit.RATIO,
                    width=24,
                    height=9,
                    low=0,
                    high=1,
                    steps=_UTILISATION,
                ),
                Panel(
                    title="Time by kind",
                    doc="What the time of all workers goes to; all kinds together are all of it.",
                    queries=(Query(_BY_KIND, "{{run}} {{kind}}"),),
                    view=View.STACK,
                    unit=Unit.RATIO,
                    width=12,
                    low=0,
                    high=1,
                ),
                Panel(
                    title="Exposed communication of each worker",
                    doc="Waiting for the network alone.",
                    queries=(Query(share(EXPOSED, _WORKER), "{{run}} {{instance}}"),),
                    unit=Unit.RATIO,
                    width=12,
                    low=0,
                    high=1,
                ),
                Panel(
                    title="Compute against the stage's median",
                    doc="Above 1: this worker is slower than its peers, or has more to do. All "
                    "workers of a stage go at the pace of its slowest.",
                    queries=(Query(against_median(_COMPUTE), "{{run}} {{instance}}"),),
                    width=8,
                ),
                Panel(
                    title="Peak memory",
                    doc="Largest resident memory of each worker so far; device memory on CUDA.",
                    queries=(Query(of(catalogue.PEAK_MEMORY), "{{run}} {{instance}}"),),
                    unit=Unit.BYTES,
                    width=8,
                    low=0,
                ),
                Panel(
                    title="Time accounted for",
                    doc="All kinds of time over wall time by another clock: 1, or the other "
                    "figures of this page are wrong.",
                    queries=(
                        Query(
                            f"{rate(catalogue.SECONDS, _WORKER)} / "
                            f"{rate(catalogue.WALL_SECONDS, _WORKER)}",
                            "{{run}} {{instance}}",
                        ),
                    ),
                    unit=Unit.RATIO,
                    width=8,
                    low=0.9,
                    high=1.1,
                ),
            ),
        ),
        Row(
            "Channels",
            (
                Panel(
                    title="Bandwidth of each channel",
                    doc="Bytes that all workers send on it per second: payloads, counts, sums.",
                    queries=(Query(_SENT_ON, "{{run}} {{channel}}"),),
                    unit=Unit.BYTES_PER_S,
                    width=8,
                    low=0,
                ),
                Panel(
                    title="Each channel, against the links of its senders",
                    doc="Mean bandwidth of a channel over what the links of all workers that send "
                    "on it carry together (metrics.link_bytes_per_s).",
                    queries=(
                        Query(f"{_SENT_ON} / {_SENDERS} {_OF_A_LINK}", "{{run}} {{channel}}"),
                    ),
                    unit=Unit.RATIO,
                    width=8,
                    low=0,
                ),
                Panel(
                    title="Sent by each worker, against its link",
                    doc="Bytes that a worker sends per second over what its link carries "
                    "(metrics.link_bytes_per_s). Near 1: more overlap cannot help.",
                    queries=(Query(f"{_SENT} {_OF_A_LINK}", "{{run}} {{instance}}"),),
                    unit=Unit.RATIO,
                    width=8,
                    low=0,
                ),
                Panel(
                    title="Messages per second",
                    doc="Of each channel.",
                    queries=(
                        Query(
                            rate(catalogue.CHANNEL_MESSAGES, "run, channel"), "{{run}} {{channel}}"
                        ),
                    ),
                    unit=Unit.PER_S,
                    width=12,
                    low=0,
                ),
                Panel(
                    title="Bytes per message",
                    doc="Since the workers were connected. Small messages do not fill a link.",
                    queries=(
                        Query(
                            f"sum by (run, channel) ({of(catalogue.CHANNEL_BYTES)}) / "
                            f"(sum by (run, channel) ({of(catalogue.CHANNEL_MESSAGES)}) > 0)",
                            "{{run}} {{channel}}",
                        ),
                    ),
                    unit=Unit.BYTES,
                    width=12,
                    log_scale=True,
                ),
            ),
        ),
    ),
)
