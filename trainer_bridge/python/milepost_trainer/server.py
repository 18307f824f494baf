"""The gRPC server.

Invariants. All work on tensors is done by one worker thread, so changing calls run one at a time in order of arrival,
and OpenMP has one team of threads. Hello and Health never wait for it. Every failure becomes a gRPC status whose
details carry op, kind and message (ErrorDetail). With several ranks this is rank 0, and a failure that may have left the
ranks in different places ends the server with an exit code.
"""

import logging
import os
import queue
import tempfile
import threading
import time
from concurrent import futures

import grpc
import torch
import transformers

from milepost_trainer import calls, critic, lora, loss, model, optim, sft, transfer
from milepost_trainer.errors import TrainerError, as_trainer_error
from milepost_trainer.options import Options
from milepost_trainer.pb import schema
from milepost_trainer.pb import trainer_pb2 as pb
from milepost_trainer.pb import trainer_pb2_grpc as rpc
from milepost_trainer.ranks import Ranks
from milepost_trainer.stats import GuardConfig
from milepost_trainer.trainer import Trainer, UpdateConfig, resident_bytes

log = logging.getLogger("milepost_trainer")

MAX_MESSAGE = 256 << 20
STATUS_OF = {
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "conflict": grpc.StatusCode.FAILED_PRECONDITION,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "canceled": grpc.StatusCode.CANCELLED,
    "corrupt": grpc.StatusCode.DATA_LOSS,
    "internal": grpc.StatusCode.INTERNAL,
}


def abort(context: grpc.ServicerContext, op: str, e: BaseException):
    """Ends the call with the error in the status details. Does not return."""
    known = as_trainer_error(e)
    if known.kind == "internal":
        log.error("trainer: %s failed", op, exc_info=e)
    detail = pb.ErrorDetail(op=f"trainer: {op}", kind=known.kind, message=str(known))
    packed = pb.Any(type_url="type.googleapis.com/milepost.trainer.v1.ErrorDetail", value=detail.SerializeToString())
    code = STATUS_OF[known.kind]
    status = pb.Status(code=code.value[0], message=str(known), details=[packed])
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, str(known))


def optional(message, *names) -> dict:
    return {n: getattr(message, n) if message.HasField(n) else None for n in names}


def plain(message, *skip) -> dict:
    return {f.name: getattr(message, f.name) for f in message.DESCRIPTOR.fields if f.name not in skip}


def loss_config(m: pb.LossConfig) -> loss.LossConfig:
    return loss.LossConfig(**plain(m, "dual_clip", "norm_length"), **optional(m, "dual_clip", "norm_length"))


def update_config(m: pb.UpdateConfig) -> UpdateConfig:
    return UpdateConfig(
        loss=loss_config(m.loss),
        optimizer=optim.OptimizerConfig(**plain(m.optimizer)),
        value=critic.ValueConfig(**plain(m.value)),
        guard=GuardConfig(**plain(m.guard)),
        **plain(m, "loss", "optimizer", "value", "guard"),
    )


def supervised_config(m: pb.SupervisedConfig) -> sft.SupervisedConfig:
    return sft.SupervisedConfig(optimizer=optim.OptimizerConfig(**plain(m.optimizer)), **plain(m, "optimizer"))


def options(m: pb.Options) -> Options:
    adapter = None
    if m.HasField("lora"):
        adapter = lora.LoraConfig(**plain(m.lora, "target_modules"), target_modules=tuple(m.lora.target_modules))
    return Options(lora=adapter, **plain(m, "lora"))


class Service(rpc.TrainerServicer):
    def __init__(self, group: Ranks | None = None):
        self.trainer = Trainer(group)
        self.links = transfer.Links(self.trainer.ranks.device)
        self.broken = False  # the ranks may disagree
        self.worker = futures.ThreadPoolExecutor(1, thread_name_prefix="trainer")
        self.stopping = threading.Event()
        self.busy: tuple[str, float] | None = None
        self.threads = torch.get_num_threads()

    def submit(self, op: str, context, work):
        """Queues work for the worker thread; it is skipped where the caller has gone before its turn."""

        def run():
            if self.broken:  # a collective would wait for ranks that are elsewhere
                raise TrainerError("unavailable", "the ranks may disagree; the trainer is ending")
            if not context.is_active():
                raise TrainerError("canceled", "the caller left before its turn")
            self.busy = (op, time.monotonic())
            try:
                torch.set_num_threads(self.threads)  # OpenMP keeps the number per calling thread
                return work()
            except TrainerError:
                raise
            except BaseException:
                if self.trainer.ranks.world > 1:
                    self.broken = True
                    self.stopping.set()
                raise
            finally:
                self.busy = None

        return self.worker.submit(run)

    def call(self, op: str, context, work):
        try:
            return self.submit(op, context, work).result()
        except BaseException as e:
            abort(context, op, e)

    def Hello(self, request, context):
        if request.schema_hash != schema.SCHEMA_HASH:
            theirs = f"schema {request.schema_hash[:12]}, this trainer {schema.SCHEMA_HASH[:12]}"
            abort(context, "hello", TrainerError("conflict", f"the caller speaks {theirs}; use one version of both"))
        return pb.HelloReply(
            schema_hash=schema.SCHEMA_HASH,
            pid=os.getpid(),
            torch_version=torch.__version__,
            transformers_version=transformers.__version__,
            threads=self.threads,
        )

    def CreateModel(self, request, context):
        def work():
            m = request.model
            shape = model.Shape(**plain(m, "added_tokens"), added_tokens=list(m.added_tokens))
            parameters, vocab = model.create(request.corpus, request.out, shape)
            return pb.CreateModelReply(parameters=parameters, vocab_size=vocab)

        return self.call("create model", context, work)

    def Init(self, request, context):
        def work():
            fields = plain(request, "model", "options") | {"path": request.model, "options": options(request.options)}
            return pb.InitReply(info=pb.ModelInfo(**calls.run(self.trainer, "init", fields)))

        return self.call("init", context, work)

    def Update(self, request, context):
        def work():
            fields = plain(request, "config") | {"config": update_config(request.config)}
            return pb.UpdateReply(**calls.run(self.trainer, "update", fields))

        return self.call("update", context, work)

    def Supervised(self, request, context):
        messages: queue.Queue[dict | None] = queue.Queue()

        def work():
            try:
                fields = {"path": request.path, "config": supervised_config(request.config)}
                calls.run(self.trainer, "supervised", fields, progress=messages.put, alive=context.is_active)
            finally:
                messages.put(None)

        running = self.submit("supervised", context, work)
        running.add_done_callback(lambda _: messages.put(None))  # also where the work was skipped
        last = None
        while (m := messages.get()) is not None:
            if last is not None:
                yield pb.SupervisedProgress(**last)
            last = m
        try:
            running.result()
        except BaseException as e:
            abort(context, "supervised", e)
        if last is not None:
            yield pb.SupervisedProgress(**last, done=True)

    def Score(self, request, context):
        def work():
            fields = {"temperature": request.temperature or 1.0, "reference": request.reference}
            logprobs = calls.run(self.trainer, "score", fields | {"sequences": [list(s.ids) for s in request.sequences]})
            return pb.ScoreReply(logprobs=[pb.LogprobList(values=values.tolist()) for values in logprobs])

        return self.call("score", context, work)

    def Values(self, request, context):
        def work():
            rows = calls.run(self.trainer, "values", plain(request))
            return pb.ValuesReply(rows=[pb.ValueList(values=values.tolist()) for values in rows])

        return self.call("values", context, work)

    def Save(self, request, context):
        def work():
            return pb.SaveReply(info=pb.ModelInfo(**calls.run(self.trainer, "save", {"path": request.dir})))

        return self.call("save", context, work)

    def Load(self, request, context):
        def work():
            fields = plain(request, "dir", "options") | {"path": request.dir, "options": options(request.options)}
            return pb.LoadReply(info=pb.ModelInfo(**calls.run(self.trainer, "load", fields)))

        return self.call("load", context, work)

    def Export(self, request, context):
        def work():
            digest, size = calls.run(self.trainer, "export", plain(request, "dir") | {"path": request.dir})
            return pb.ExportReply(weights_sha256=digest, bytes=size)

        return self.call("export", context, work)

    def TransferOpen(self, request, context):
        try:
            return pb.TransferOpenReply(**self.links.open(**plain(request)))
        except Exception as e:
            abort(context, "transfer open", e)

    def TransferPlan(self, request, context):
        def work():
            plan = transfer.plan(self.trainer, request.dir)
            return pb.TransferPlanReply(tensors=[pb.TransferTensor(**t) for t in plan["tensors"]], sha256=plan["sha256"])

        return self.call("transfer plan", context, work)

    def TransferSend(self, request, context):
        def work():
            fields = {"path": request.dir, "plan_sha256": request.plan_sha256}
            link = self.links.get(request.link)
            return pb.TransferSendReply(**calls.run(self.trainer, "transfer", fields, link=link, alive=context.is_active))

        return self.call("transfer", context, work)

    def Health(self, request, context):
        busy = self.busy
        return pb.HealthReply(
            busy=busy[0] if busy else "",
            busy_seconds=time.monotonic() - busy[1] if busy else 0.0,
            loaded=self.trainer.policy is not None,
            updates=self.trainer.updates,
            memory_bytes=resident_bytes(),
        )

    def Shutdown(self, request, context):
        self.stopping.set()
        return pb.ShutdownReply()


def serve(listen: str, address_file: str = "", stopping: threading.Event | None = None, group: Ranks | None = None) -> int:
    """Serves until Shutdown or `stopping`; returns the exit code. address_file gets the address once it answers."""
    service = Service(group)
    if stopping is not None:
        service.stopping = stopping
    server = grpc.server(
        futures.ThreadPoolExecutor(16),
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.max_send_message_length", MAX_MESSAGE),
            ("grpc.so_reuseport", 0),  # a port in use is an error
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),  # the client pings every 30 s; the default ends long steps
            ("grpc.keepalive_permit_without_calls", 1),
        ],
    )
    rpc.add_TrainerServicer_to_server(service, server)
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as e:
        log.error("trainer: cannot listen on %s: %s; allowed: a free HOST:PORT or unix:/path", listen, e)
        return 1
    server.start()
    address = listen if listen.startswith("unix:") else f"{listen.rsplit(':', 1)[0]}:{port}"
    if address_file:
        write_atomically(address_file, address + "\n")
    world = service.trainer.ranks.world
    log.info("trainer: serving on %s with %d threads, %d ranks (pid %d)", address, service.threads, world, os.getpid())
    service.stopping.wait()
    server.stop(grace=None if service.busy is None else 3600).wait()
    service.worker.shutdown(wait=True)
    if service.broken:
        log.error("trainer: the ranks may disagree; a run goes on from its last checkpoint")
        return 1
    calls.stop(service.trainer.ranks)
    return 0


def write_atomically(path: str, text: str) -> None:
    fd, tmp = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=os.path.basename(path) + ".tmp-")
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        f.write(text)
    os.rename(tmp, path)
