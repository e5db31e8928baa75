"""One worker's training steps: data in, program, reductions, commit, update."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from disagmoe.data.batch import Batch, count_valid, join_batches, ring_micro_batches, worker_part
from disagmoe.data.source import BatchSource
from disagmoe.errors import DataError
from disagmoe.model.device import on_device
from disagmoe.model.losses import StepTotals
from disagmoe.optim.clip import all_finite, clip_scale, nonfinite_names
from disagmoe.optim.lr import learning_rate
from disagmoe.runtime.attention import AttentionSide
from disagmoe.runtime.channels import WORLD, channel_name, channel_specs
from disagmoe.runtime.context import Context
from disagmoe.runtime.counters import StepCounters
from disagmoe.runtime.devicetime import stopwatch_of
from disagmoe.runtime.experts import ExpertSide
from disagmoe.runtime.halves import Part
from disagmoe.runtime.interpreter import Interpreter
from disagmoe.runtime.memory import (
    measure,
    memory_explained,
    memory_table,
    peak_memory_bytes,
    predict,
)
from disagmoe.runtime.moments import moments_of
from disagmoe.runtime.offsets import clock_offset
from disagmoe.runtime.parameters import (
    Parameters,
    SegmentKind,
    balances_of,
    local_tensors,
    used_twice,
)
from disagmoe.runtime.recording import Recording
from disagmoe.runtime.report import EvalReport, HopCounts, StepReport
from disagmoe.runtime.restoring import restore
from disagmoe.runtime.saving import SavedPart, Saver
from disagmoe.runtime.side import SideOps
from disagmoe.runtime.slots import SlotTable
from disagmoe.runtime.trace import WorkerTrace
from disagmoe.runtime.update import Update
from disagmoe.runtime.world import Share, World
from disagmoe.schedule.accounting import Kind
from disagmoe.schedule.ir import GroupProgram, Op, ProgramSpec
from disagmoe.schedule.layout import Side
from disagmoe.storage import Location
from disagmoe.transport.base import Transport, TransportChannel
from disagmoe.transport.collective import reduce_to_all_small
from disagmoe.transport.counted import CountedChannel, Traffic

log = logging.getLogger(__name__)


class WorkerRuntime:
    """Everything of a run that lives on one worker. Not for several threads, but `request_stop`."""

    def __init__(
        self,
        context: Context,
        train: GroupProgram,
        evaluation: GroupProgram | None,
        transport: Transport,
        source: BatchSource | None,
        checkpoints: Location | None = None,
    ) -> None:
        """`source` is None exactly where attention is not played: experts see no tokens.

        `checkpoints` is the folder to save to when the config says so; None never saves.
        """
        self._context = context
        self._train = train
        self._eval = evaluation
        self._source = source
        self._transport = transport
        config = context.config
        self._attention_weights = config.parallel.attention_weights
        self._slots = SlotTable(config.cluster.transfer_timeout_s)
        self._moments = moments_of(
            context.device, transport.launches, config.cluster.transfer_timeout_s
        )
        self.stopwatch = stopwatch_of(self._moments)
        self.parameters = Parameters(
            local_tensors(
                config.model,
                context.layout,
                context.worker,
                context.expert_ranges,
                shared_with_experts=context.shared_with_experts,
            ),
            used_twice(config.model, context.layout, context.worker),
            balances_of(config.model, context.layout, context.worker),
            seed=config.train.seed,
            std=config.model.init_std,
            dtype=context.dtype,
            device=context.device,
        )
        self.update = Update(context, self.parameters, config.train.optimizer)
        attention, experts = context.role(Side.ATTENTION), context.role(Side.EXPERT)
        self._attention = (
            None
            if attention is None
            else AttentionSide(context, attention, self.parameters, self._slots)
        )
        self._experts = (
            None if experts is None else ExpertSide(context, experts, self.parameters, self._slots)
        )
        self._me = str(context.worker)
        self.saver = (
            None
            if checkpoints is None
            else Saver(self._me, self.update, context.device, checkpoints, config.checkpoint)
        )
        self._first_step = 0
        self._step = -1
        self._everyone = [str(w) for w in context.layout.workers]
        self._stop_requested = False
        self._totals = StepTotals(valid_targets=0, tokens=0, sequences=0, micro_batches=0)
        self._world: World | None = None
        self._nonfinite = False
        self._offset_s = 0.0
        self._recording: Recording | None = None
        self._channels: dict[str, TransportChannel] = {}
        self._counted: dict[str, CountedChannel] = {}
        sides: dict[Side, SideOps] = {}
        if self._attention is not None:
            sides[Side.ATTENTION] = self._attention
        if self._experts is not None:
            sides[Side.EXPERT] = self._experts
        self.interpreter = Interpreter(
            context,
            sides,
            self._slots,
            self._channels,
            self.stopwatch,
            transport.launches,
            self._moments,
        )

    def connect(self) -> None:
        """Open and warm all channels. All workers call it together."""
        context = self._context
        opened = self._transport.open(
            channel_specs(context.spec, shared_with_experts=context.shared_with_experts)
        )
        self._counted = {name: CountedChannel(one, self._me) for name, one in opened.items()}
        self._channels.update(self._counted)
        self.update.connect(self._channels)
        self._offset_s = clock_offset(self._channels[WORLD], self._me, self._everyone)
        self.interpreter.handovers.clock_offset_s = self._offset_s
        if self._attention is not None:
            self._attention.connect(self._channels)

    def restore(self, place: Location) -> None:
        """Take over the state in the checkpoint `place`. All workers call it together, connected
        and before their first step.

        Raises CheckpointError where the checkpoint is incomplete, damaged or of another model.
        """
        context = self._context
        self._first_step = restore(self.update, place, self._me, context.device)

    def saved(self, step: int) -> SavedPart:
        """Wait until the state after `step` steps, whose step has reported `saving`, is durable.

        For another thread than the one that does steps. Raises CheckpointError where it cannot be
        written.
        """
        assert self.saver is not None
        return self.saver.written(step)

    @property
    def sending(self) -> tuple[str, ...]:
        """Names of the channels on which this worker may send."""
        specs = channel_specs(self._context.spec)
        return tuple(spec.name for spec in specs if self._me in spec.sources)

    def _take_trace(self) -> WorkerTrace:
        """Return what this step did when, on the first worker's clock."""
        shift = self._offset_s
        spans = tuple(
            replace(span, start_s=span.start_s + shift, end_s=span.end_s + shift)
            for span in self.stopwatch.take_spans()
        )
        hops = tuple(
            replace(hop, start_s=hop.start_s + shift, end_s=hop.end_s + shift)
            for hop in self.interpreter.take_hops()
        )
        return WorkerTrace(self._step, spans, hops)

    def adopt(
        self,
        train: GroupProgram,
        evaluation: GroupProgram | None,
        attention_weights: Sequence[float],
    ) -> None:
        """Go on with other programs for the same specs, and another division of micro-batches among
        attention workers. All workers do it between the same two steps."""
        for old, new in ((self._train, train), (self._eval, evaluation)):
            if (old and old.spec) != (new and new.spec):
                raise AssertionError("these programs are made for another run")
        self._train, self._eval = train, evaluation
        self._attention_weights = list(attention_weights)

    def record(self) -> Recording:
        """Keep what each step from now on computes, in the returned value."""
        self._recording = Recording()
        if self._attention is not None:
            self._attention.recording = self._recording
        return self._recording

    @property
    def step_under_way(self) -> int:
        """Number of the step that is done now or was done last; -1 before the first."""
        return self._step

    def close(self) -> None:
        """Leave all channels."""
        self._transport.close()
        self.interpreter.close()
        if self.saver is not None:
            self.saver.close()

    def request_stop(self) -> None:
        """Make the step under way, or the next one, the last on all workers."""
        self._stop_requested = True

    def run_step(self, step: int) -> StepReport:
        """Do optimizer step `step`, counted from 0. All workers call it together.

        Raises WorkerError that names the instruction at which this worker failed, and DataError for
        a batch of another size than the program is made for.
        """
        self._step = step
        self._moments.adopt()
        config = self._context.config
        traced = config.trace.covers(step) or self._is_profiled(step)
        self.stopwatch.trace(traced)
        self.interpreter.take_hops()  # those of a step that is not traced
        self._take_traffic()  # that of an evaluation
        self.interpreter.take_rows()
        self.stopwatch.switch(Kind.DATA)
        batch = None if self._source is None else self._source.step(step)
        self._begin(batch, self._train.spec)
        step_end: Mapping[Op, Callable[[], None]] = {
            Op.REDUCE_GRADS: self._reduce_grads,
            Op.REDUCE_WORLD: self._reduce_world,
            Op.UPDATE: self._update,
        }
        with memory_explained(self.memory_table):
            self.interpreter.run(self._train.program, step_end)
        world = self._world
        assert world is not None
        saving = self._save(world)
        traffic = self._take_traffic()
        return StepReport(
            step=step,
            loss=world.loss,
            balance=world.balance,
            z=world.z,
            grad_norm=math.sqrt(world.norm_squared),
            lr=learning_rate(step, self._context.config.train),
            tokens=world.tokens,
            valid_targets=world.valid_targets,
            skipped=world.reason_to_skip(),
            stopped=world.stop,
            saving=saving,
            choices_LE=world.choices_LE,
            seconds={kind.value: seconds for kind, seconds in self.stopwatch.take().items()},
            traffic=traffic,
            hops=self._hops(traffic),
            peak_memory_bytes=peak_memory_bytes(self._context.device),
            trace=self._take_trace() if traced else None,
        )

    def memory_table(self) -> str:
        """Return what training was predicted to take, and what it has taken so far."""
        measured = measure(self.parameters, self.update, self._context.device)
        return memory_table(predict(self._context, self._train), measured)

    def _take_traffic(self) -> dict[str, Traffic]:
        taken = {name: channel.take() for name, channel in self._counted.items()}
        return {name: traffic for name, traffic in taken.items() if traffic.messages}

    def _hops(self, traffic: Mapping[str, Traffic]) -> dict[str, HopCounts]:
        context, attention = self._context, self._attention
        sent = self.interpreter.take_rows()
        asked = {} if attention is None else attention.counters.rows
        nbytes = dict.fromkeys(context.takers, 0)
        for channel in context.layout.channels():
            one = traffic.get(channel_name(channel, context.worker.ring))
            if one is not None and Side.EXPERT in (channel.source.side, channel.target.side):
                nbytes[channel.hop] += one.nbytes
        return {
            hop: HopCounts(
                rows=sent.get(hop, 0), exact_rows=int(asked.get(hop, 0)), nbytes=nbytes[hop]
            )
            for hop in context.takers
        }

    def evaluate(self) -> EvalReport:
        """Return the loss on held-out data; changes no state. All workers call it together."""
        if self._eval is None:
            raise AssertionError("no evaluation program")
        self.stopwatch.switch(Kind.DATA)
        self._begin(None if self._source is None else _whole(self._source), self._eval.spec)
        with memory_explained(self.memory_table):
            self.interpreter.run(self._eval.program, {})
        world = self._sum_world()
        return EvalReport(loss=world.loss, valid_targets=world.valid_targets)

    def _begin(self, batch: Batch | None, spec: ProgramSpec) -> None:
        if self._attention is not None:
            assert batch is not None
            parts, self._totals = self._cut(batch, spec)
            self._attention.begin(parts, self._totals, training=spec.training)
        if self._experts is not None:
            self._experts.begin(training=spec.training)

    def _cut(self, batch: Batch, spec: ProgramSpec) -> tuple[Sequence[Part], StepTotals]:
        context, layout = self._context, self._context.layout
        size = context.config.parallel.micro_batch_size
        rings = [
            ring_micro_batches(batch, size, ring, layout.rings) for ring in range(layout.rings)
        ]
        if len(rings[0]) != spec.micro_batches:
            raise DataError(
                f"{batch.sequences} sequences make {len(rings[0])} micro-batches of at most {size} "
                f"per ring, but the program is made for {spec.micro_batches}"
            )
        totals = StepTotals(
            valid_targets=count_valid(batch.targets_BS),
            tokens=batch.targets_BS.numel(),
            sequences=batch.sequences,
            micro_batches=sum(part.sequences > 0 for ring in rings for part in ring),
        )
        parts = []
        for micro_batch in rings[context.worker.ring]:
            part = worker_part(micro_batch, self._attention_weights, context.worker.rank)
            parts.append(
                Part(
                    on_device(part.tokens_BS, context.device),
                    on_device(part.targets_BS, context.device),
                    micro_batch.tokens_BS.numel(),
                    part.documents,
                )
            )
        return parts, totals

    def _reduce_grads(self) -> None:
        self.stopwatch.switch(Kind.OPTIMIZER)
        self.parameters.join_uses()
        # before the sum, which would spread what is not finite to everyone
        self._nonfinite = any(
            not all_finite(segment.flat_grad) for segment in self.parameters.segments.values()
        )
        if self._nonfinite:
            names = ", ".join(nonfinite_names(self.parameters.grads)[:5])
            log.warning("step %d: gradients of %s are not finite: %s", self._step, self._me, names)
        self.stopwatch.switch(Kind.SEND)
        self.update.reduce()

    def _reduce_world(self) -> None:
        self.stopwatch.switch(Kind.OPTIMIZER)
        norms = self.update.norm_squared()
        self._moments.calibrate()  # the norms have been read: the device is idle
        self.stopwatch.switch(Kind.IDLE, str(Op.REDUCE_WORLD))
        save = self.saver is not None and self._asks_to_save(self.saver)
        self._world = self._sum_world(norms, nonfinite=self._nonfinite, save=save)

    def _sum_world(
        self,
        norms: Mapping[SegmentKind, float] | None = None,
        *,
        nonfinite: bool = False,
        save: bool = False,
    ) -> World:
        """Add up what every worker has; all of them get the same bits."""
        context, totals, attention = self._context, self._totals, self._attention
        counters = StepCounters.zero(context, 0) if attention is None else attention.counters
        share = Share(
            counters=counters,
            norm_squared=norms or {},
            nonfinite=nonfinite,
            stop=self._stop_requested,
            save=save,
            tokens=totals.tokens if self._speaks else 0,
            valid_targets=totals.valid_targets if self._speaks else 0,
        )
        vector = share.encode(self._everyone.index(self._me), len(self._everyone))
        total = reduce_to_all_small(self._channels[WORLD], self._me, self._everyone, vector)
        return World.decode(total, self._everyone, context.config.model.experts)

    @property
    def _speaks(self) -> bool:
        """Whether this worker speaks for all in what all of them know."""
        return self._context.worker == self._context.layout.workers[0]

    def _is_profiled(self, step: int) -> bool:
        return step in self._context.config.parallel.profiled_steps(self._first_step)

    def _asks_to_save(self, saver: Saver) -> bool:
        config = self._context.config
        by_number = config.checkpoint.saves_after(self._step, config.train.steps)
        return by_number or (self._speaks and saver.is_due())

    def _save(self, world: World) -> bool:
        """Begin to save where the world says so; return whether it does."""
        on_stop = world.stop and self._context.config.checkpoint.on_stop
        if self.saver is None or not (world.save or on_stop):
            return False
        self.stopwatch.switch(Kind.CHECKPOINT, "save")
        done = self._step + 1
        data = self._source.position(done) if self._source is not None and self._speaks else None
        self.saver.save(done, data)
        self.stopwatch.switch(Kind.IDLE)
        return True

    def _update(self) -> None:
        self.stopwatch.switch(Kind.OPTIMIZER)
        world = self._world
        assert world is not None
        if self._recording is not None:
            self._recording.grads = self.update.summed_grads()
        if not world.reason_to_skip():
            train = self._context.config.train
            norm = math.sqrt(world.norm_squared)
            self.update.apply(
                learning_rate(self._step, train), clip_scale(norm, train.optimizer.clip_norm)
            )
            self.update.move_balances(world.choices_LE, train.loss.bias_rate)
            self.stopwatch.switch(Kind.SEND)
            self.update.gather()
            self.stopwatch.switch(Kind.OPTIMIZER)
        self.update.zero_grad()


def _whole(source: BatchSource) -> Batch:
    """All held-out sequences as one batch, which the evaluation program cuts into micro-batches."""
    return join_batches(list(source.held_out()))
