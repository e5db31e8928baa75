"""From an assignment to a runtime in this process: log, threads, device, data, transport."""

import faulthandler
import logging
import os

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from disagmoe.actors.injector import install
from disagmoe.actors.locate import versions
from disagmoe.actors.messages import Started, WorkerAssignment
from disagmoe.actors.nics import GLOO_INTERFACE
from disagmoe.config.run import RunConfig
from disagmoe.data.position import Origin
from disagmoe.data.source import PreparedSource
from disagmoe.model.init import seed_of
from disagmoe.runtime.context import Context
from disagmoe.runtime.step import WorkerRuntime
from disagmoe.schedule.layout import Side, Worker
from disagmoe.storage import Location
from disagmoe.transport.base import Transport
from disagmoe.transport.gloo import GlooTransport
from disagmoe.transport.nccl import NcclTransport
from disagmoe.transport.nccl_library import load_nccl
from disagmoe.transport.rendezvous import connect
from disagmoe.transport.staged import StagedTransport
from disagmoe.transport.streams import CudaStreams

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(path: str) -> None:
    """Send this process's log to the file `path`, with the stacks of a crash in native code."""
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the process lives
    logging.basicConfig(stream=file, level=logging.INFO, format=LOG_FORMAT, force=True)
    faulthandler.enable(file)


def open_data(config: RunConfig, origin: Origin | None = None) -> PreparedSource:
    """Open the data of `config`, which begins at `origin`, or at its beginning.

    Raises DataError and ConfigError as PreparedSource.open does.
    """
    return PreparedSource.open(
        config.data, config.train, vocab_size=config.model.vocab_size, origin=origin or Origin()
    )


def build_runtime(assignment: WorkerAssignment) -> WorkerRuntime:
    """Build the runtime of `assignment`, not yet connected, and log to its file from now on.

    The random numbers of this process follow from the run's seed and the worker's name, so that a
    run that begins anew after a failure begins with the same.

    Raises TransportError when the run's store does not answer, DataError when data cannot be read.
    """
    log_to(assignment.log_file)
    torch.set_num_threads(assignment.threads)
    torch.manual_seed(seed_of(assignment.config.train.seed, assignment.worker))
    train = assignment.train.open()
    config, cluster = assignment.config, assignment.config.cluster
    worker = Worker.parse(assignment.worker)
    device = torch.device(cluster.device)
    origin = assignment.resume.origin if assignment.resume is not None else None
    transport = transport_of(assignment)
    runtime = WorkerRuntime(
        Context(config, train.spec, worker, device),
        train,
        None if assignment.evaluation is None else assignment.evaluation.open(),
        transport,
        None if worker.group.side is Side.EXPERT else open_data(config, origin),
        Location.parse(assignment.checkpoints) if assignment.checkpoints else None,
    )
    install(runtime, assignment.worker, os.environ)
    return runtime


def transport_of(assignment: WorkerAssignment) -> Transport:
    """Return what carries tensors on the device of `assignment`, not yet connected; this process's
    environment is that of the assignment from now on.

    Raises TransportError when the run's store does not answer, or its library does not serve.
    """
    os.environ.update(assignment.environment)
    cluster = assignment.config.cluster
    device = torch.device(cluster.device)
    gloo = GlooTransport(
        assignment.worker,
        _store(assignment),
        epoch=assignment.epoch,
        host=assignment.host,
        # gloo itself takes several, and uses the others for tags that are never sent here
        interface=assignment.environment.get(GLOO_INTERFACE, "").partition(",")[0] or None,
        timeout_s=cluster.transfer_timeout_s,
        start_timeout_s=cluster.start_timeout_s,
    )
    if device.type == "cpu":
        return gloo
    if cluster.transport == "gloo":
        return StagedTransport(gloo, device)
    return NcclTransport(
        assignment.worker,
        _store(assignment),
        gloo,
        CudaStreams(device),
        load_nccl(),
        epoch=assignment.epoch,
        timeout_s=cluster.transfer_timeout_s,
        start_timeout_s=cluster.start_timeout_s,
    )


def _store(assignment: WorkerAssignment) -> Store:
    """A client of the run's store of its own, since one serves one thread."""
    within_s = assignment.config.cluster.start_timeout_s
    return connect(assignment.store_host, assignment.store_port, within_s)


def started(assignment: WorkerAssignment) -> Started:
    """What to tell the driver once the runtime is connected."""
    log.info("%s: connected, %d threads", assignment.worker, assignment.threads)
    return Started(
        worker=assignment.worker,
        host=assignment.host,
        pid=os.getpid(),
        versions=versions(),
    )
