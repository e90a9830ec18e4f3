"""Every rank puts its model on the first GPU.

`model.cuda()` and `model.to("cuda")` use the current device, which is GPU 0 in each process unless
`torch.cuda.set_device` was called. All ranks then share one GPU, and the others are idle. Some
versions of NCCL fail or hang; with others the run is only slow and soon out of memory.

Ignore it if a launcher shows one GPU to each process. A script that mentions CUDA_VISIBLE_DEVICES
is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html

Wrong:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(4, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()
        optimizer.step()

Right:

    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    print(DDP(torch.nn.Linear(4, 1).cuda()))
"""

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, is_model, options_of
from surestep.doctor.source.values import Call, Constant, Value

SEVERITY = "error"
FIX = 'Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is moved.'
_SETS_DEVICE = re.compile(
    r"set_device|VISIBLE_DEVICES|device_ids|device_id|cuda\.device\(|cuda:|get_device"
)


def check(program: Program) -> Iterator[Problem]:
    """Find models that ranks with the NCCL backend move to the current device, which none set."""
    if program.contains(_SETS_DEVICE):
        return
    for trace in program.traces:
        if not _uses_nccl(trace) or _calls_unknown_setup(trace):
            continue
        for event, call in trace.calls:
            if _moves_to_current_device(call) and is_model(call.receiver):
                yield at_event(
                    event,
                    f"`{describe(call)}` puts the model of every rank on GPU 0: no line sets the "
                    "device of a rank.",
                )


def _uses_nccl(trace: Trace) -> bool:
    calls = (event.call for event in trace.events)
    return any(
        call is not None
        and call.path == "torch.distributed.init_process_group"
        and isinstance(backend := call.argument(0, "backend"), Constant)
        and "nccl" in str(backend.value)
        for call in calls
    )


def _calls_unknown_setup(trace: Trace) -> bool:
    """Return whether a function that is not followed may set the device."""
    return any(map(_may_set_device, trace.events))


def _may_set_device(event: Event) -> bool:
    call = event.call
    if call is None or call.path.startswith("torch.") or call.is_method:
        return False
    return bool(re.search(r"device|dist|init|setup|launch", call.name))


def _moves_to_current_device(call: Call) -> bool:
    if call.path == ".cuda":
        return not call.args and not call.keywords
    device = call.argument(0, "device") if call.path == ".to" else None
    return any(map(_is_current_gpu, options_of(device)))


def _is_current_gpu(device: Value) -> bool:
    """Return whether a device is "cuda" without a number, which may depend on whether it exists."""
    if isinstance(device, Call) and device.path == "torch.device" and len(device.args) == 1:
        return any(map(_is_current_gpu, options_of(device.args[0])))
    return isinstance(device, Constant) and device.value == "cuda"
