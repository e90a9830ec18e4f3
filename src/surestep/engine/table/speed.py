"""What the machine may do faster: compiling, layout, products, attention, allocation."""

from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.table import accelerate, fsdp
from surestep.engine.table.rows import Refusals, Rows, default, is_said, said

_SDPA_ON_CPU = ("auto", "flash", "math")


def _matmul_differs(k: Known) -> bool:
    wanted = {"tf32": ("high", "medium"), "fp32": ("highest",)}.get(k["precision"])
    asked = k.said.get("matmul_precision")
    return k.on_gpu and asked is not None and wanted is not None and asked not in wanted


def _sets_allocator(k: Known) -> bool:
    return bool(k.said.get("cpu_allocator", "auto") != "auto")


def _retains(k: Known) -> bool:
    return k.said.get("cpu_allocator") in ("retain", "huge_pages")


ROWS: Rows = {
    "compile": (
        said("compile"),
        accelerate.COMPILE,
        default("off", "nothing said: compiling takes minutes before it saves any"),
    ),
    "compile_blocks": (
        Row(
            lambda k: k["compile"] != "off" and k["parallel.kind"] == "fsdp",
            lambda _: True,
            "each block that FSDP gathers by itself: a graph ends where one is gathered",
        ),
        said("compile_blocks"),
        default(False, "the whole model at once: what can be fused is"),
    ),
    "channels_last": (
        said("channels_last"),
        Row(lambda k: not k.given.convolutions, lambda _: False, "there is no convolution"),
        default(False, "torch's default; often faster on a GPU in half precision: measure"),
    ),
    "matmul_precision": (
        said("matmul_precision"),
        Row(lambda k: k["precision"] == "tf32", lambda _: "high", "precision is tf32"),
        default("highest", "fp32 products keep all their digits"),
    ),
    "cudnn_benchmark": (
        said("cudnn_benchmark"),
        default(False, "the fastest algorithm may differ from run to run, and so the last bits"),
    ),
    "sdpa_backend": (
        Row(
            is_said("sdpa_backend"),
            lambda k: k.said["sdpa_backend"],
            "said: {origin}",
        ),
        default("auto", "torch chooses by shape and type; the plan's table of memory names it"),
    ),
    "cpu_allocator": (
        Row(_sets_allocator, lambda k: k.said["cpu_allocator"], "said: {origin}"),
        Row(lambda k: k.on_gpu, lambda _: "default", "auto: the device is not the CPU"),
        Row(
            lambda k: k.facts.allocator.name != "glibc",
            lambda _: "default",
            "auto: malloc is not glibc's ({k.facts.allocator.name})",
        ),
        Row(
            lambda k: bool(k.facts.allocator.settings),
            lambda _: "default",
            "auto: {k.facts.allocator.settings[0]} is set in the environment",
        ),
        Row(
            lambda k: k.facts.allocator.huge_pages,
            lambda _: "huge_pages",
            "auto: steps on a CPU reuse freed memory, on huge pages",
        ),
        default("retain", "auto: steps on a CPU reuse freed memory without page faults"),
    ),
}

REFUSALS: Refusals = {
    "compile": (
        Refusal(
            lambda k: (
                k.said.get("compile", "off") != "off" and not k.on_gpu and not k.facts.compiler
            ),
            lambda k: (
                f"compile={k.said['compile']!r} needs a C++ compiler on a CPU, and there is none. "
                "Install g++ (Debian: apt install g++), or leave it out."
            ),
        ),
        *accelerate.COMPILE_REFUSALS,
        *fsdp.COMPILE_REFUSALS,
    ),
    "compile_blocks": (
        *fsdp.BLOCKS_REFUSALS,
        Refusal(
            lambda k: bool(k.said.get("compile_blocks")) and k["compile"] == "off",
            lambda _: "compile_blocks=True says how to compile: say compile='default' with it.",
        ),
        Refusal(
            lambda k: bool(k.said.get("compile_blocks")) and not k.given.blocks,
            lambda _: (
                "compile_blocks=True needs a model with blocks, in a ModuleList or Sequential, "
                "and this one has none. Leave it out."
            ),
        ),
    ),
    "channels_last": (
        Refusal(
            lambda k: bool(k.said.get("channels_last")) and not k.given.convolutions,
            lambda _: (
                "channels_last=True is for convolutions, and the model has none. Leave it out."
            ),
        ),
    ),
    "matmul_precision": (
        Refusal(
            _matmul_differs,
            lambda k: (
                f"matmul_precision={k.said['matmul_precision']!r}, and precision is "
                f"{k['precision']}. Say precision='tf32' for 'high', 'fp32' for 'highest', or "
                "leave one out."
            ),
        ),
    ),
    "cudnn_benchmark": (
        Refusal(
            lambda k: bool(k.said.get("cudnn_benchmark")) and k["deterministic"],
            lambda _: (
                "cudnn_benchmark=True lets cuDNN choose another algorithm each run, and "
                "deterministic=True forbids that. Say one of them."
            ),
        ),
        Refusal(
            lambda k: bool(k.said.get("cudnn_benchmark")) and not k.on_gpu,
            lambda k: (
                f"cudnn_benchmark=True is for a GPU, and the device is {k['device']}. Leave it out."
            ),
        ),
    ),
    "sdpa_backend": (
        Refusal(
            lambda k: not k.on_gpu and k.said.get("sdpa_backend", "auto") not in _SDPA_ON_CPU,
            lambda k: (
                f"sdpa_backend={k.said['sdpa_backend']!r} is for a GPU, and the device is "
                f"{k['device']}, which has: {', '.join(_SDPA_ON_CPU[1:])}."
            ),
        ),
    ),
    "cpu_allocator": (
        Refusal(
            lambda k: _retains(k) and k.facts.allocator.name != "glibc",
            lambda k: (
                f"cpu_allocator={k.said['cpu_allocator']!r} sets glibc's malloc, and malloc here "
                f"is not glibc's ({k.facts.allocator.name}). Leave it out, or use "
                "cpu_allocator='default'."
            ),
        ),
        Refusal(
            lambda k: _retains(k) and bool(k.facts.allocator.settings),
            lambda k: (
                f"cpu_allocator={k.said['cpu_allocator']!r} would override the environment "
                f"variable {k.facts.allocator.settings[0]}. Unset the variable, or use "
                "cpu_allocator='default'."
            ),
        ),
        Refusal(
            lambda k: (
                k.said.get("cpu_allocator") == "huge_pages" and not k.facts.allocator.huge_pages
            ),
            lambda _: (
                "cpu_allocator='huge_pages' needs Linux with 'madvise' in "
                "/sys/kernel/mm/transparent_hugepage/enabled, overcommitted memory and no limit "
                "on address space (ulimit -v, -d). Use cpu_allocator='retain'."
            ),
        ),
    ),
}
