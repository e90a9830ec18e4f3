"""What the machine may do faster: compiling, layout, products, attention, allocation."""

from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules import accelerate, fsdp
from surestep.engine.rules.helpers import Refusals, Rows, default_value, is_set, user_value

_SDPA_ON_CPU = ("auto", "flash", "math")


def _matmul_differs(k: PlanContext) -> bool:
    wanted = {"tf32": ("high", "medium"), "fp32": ("highest",)}.get(k["precision"])
    asked = k.set_options.get("matmul_precision")
    return k.on_gpu and asked is not None and wanted is not None and asked not in wanted


def _sets_allocator(k: PlanContext) -> bool:
    return bool(k.set_options.get("cpu_allocator", "auto") != "auto")


def _retains(k: PlanContext) -> bool:
    return k.set_options.get("cpu_allocator") in ("retain", "huge_pages")


ROWS: Rows = {
    "compile": (
        user_value("compile"),
        accelerate.COMPILE,
        default_value("off", "not set: compiling takes minutes before it saves any"),
    ),
    "compile_blocks": (
        Rule(
            lambda k: (
                k["compile"] != "off" and strategy_class(k["parallel.strategy"]).gathers_blocks
            ),
            lambda _: True,
            "each block is gathered by itself, and a graph ends where one is gathered",
        ),
        user_value("compile_blocks"),
        default_value(False, "the whole model at once: what can be fused is"),
    ),
    "channels_last": (
        user_value("channels_last"),
        Rule(lambda k: not k.task_info.convolutions, lambda _: False, "there is no convolution"),
        default_value(False, "torch's default; often faster on a GPU in half precision: measure"),
    ),
    "matmul_precision": (
        user_value("matmul_precision"),
        Rule(lambda k: k["precision"] == "tf32", lambda _: "high", "precision is tf32"),
        default_value("highest", "fp32 products keep all their digits"),
    ),
    "cudnn_benchmark": (
        user_value("cudnn_benchmark"),
        default_value(
            False, "the fastest algorithm may differ from run to run, and so the last bits"
        ),
    ),
    "sdpa_backend": (
        Rule(
            is_set("sdpa_backend"),
            lambda k: k.set_options["sdpa_backend"],
            "set {origin}",
        ),
        default_value(
            "auto", "torch chooses by shape and type; the plan's table of memory names it"
        ),
    ),
    "cpu_allocator": (
        Rule(_sets_allocator, lambda k: k.set_options["cpu_allocator"], "set {origin}"),
        Rule(lambda k: k.on_gpu, lambda _: "default", "auto: the device is not the CPU"),
        Rule(
            lambda k: k.system.allocator.name != "glibc",
            lambda _: "default",
            "auto: malloc is not glibc's ({k.system.allocator.name})",
        ),
        Rule(
            lambda k: bool(k.system.allocator.settings),
            lambda _: "default",
            "auto: {k.system.allocator.settings[0]} is set in the environment",
        ),
        Rule(
            lambda k: k.system.allocator.huge_pages,
            lambda _: "huge_pages",
            "auto: steps on a CPU reuse freed memory, on huge pages",
        ),
        default_value("retain", "auto: steps on a CPU reuse freed memory without page faults"),
    ),
}

REFUSALS: Refusals = {
    "compile": (
        Constraint(
            lambda k: (
                k.set_options.get("compile", "off") != "off"
                and not k.on_gpu
                and not k.system.compiler
            ),
            lambda k: (
                f"compile={k.set_options['compile']!r} needs a C++ compiler on a CPU, and there "
                "is none. "
                "Install g++ (Debian: apt install g++), or leave it out."
            ),
        ),
        *accelerate.COMPILE_REFUSALS,
        *fsdp.COMPILE_REFUSALS,
    ),
    "compile_blocks": (
        *fsdp.BLOCKS_REFUSALS,
        Constraint(
            lambda k: bool(k.set_options.get("compile_blocks")) and not k.task_info.blocks,
            lambda _: (
                "compile_blocks=True needs a model with blocks, in a ModuleList or Sequential, "
                "and this one has none. Leave it out."
            ),
        ),
    ),
    "channels_last": (
        Constraint(
            lambda k: bool(k.set_options.get("channels_last")) and not k.task_info.convolutions,
            lambda _: (
                "channels_last=True is for convolutions, and the model has none. Leave it out."
            ),
        ),
    ),
    "matmul_precision": (
        Constraint(
            _matmul_differs,
            lambda k: (
                f"matmul_precision={k.set_options['matmul_precision']!r}, and precision is "
                f"{k['precision']}. Say precision='tf32' for 'high', 'fp32' for 'highest', or "
                "leave one out."
            ),
        ),
    ),
    "cudnn_benchmark": (
        Constraint(
            lambda k: bool(k.set_options.get("cudnn_benchmark")) and k["deterministic"],
            lambda _: (
                "cudnn_benchmark=True lets cuDNN choose another algorithm each run, and "
                "deterministic=True forbids that. Say one of them."
            ),
        ),
    ),
    "sdpa_backend": (
        Constraint(
            lambda k: (
                not k.on_gpu and k.set_options.get("sdpa_backend", "auto") not in _SDPA_ON_CPU
            ),
            lambda k: (
                f"sdpa_backend={k.set_options['sdpa_backend']!r} is for a GPU, and the device is "
                f"{k['device']}, which has: {', '.join(_SDPA_ON_CPU[1:])}."
            ),
        ),
    ),
    "cpu_allocator": (
        Constraint(
            lambda k: _retains(k) and k.system.allocator.name != "glibc",
            lambda k: (
                f"cpu_allocator={k.set_options['cpu_allocator']!r} sets glibc's malloc, and "
                "malloc here "
                f"is not glibc's ({k.system.allocator.name}). Leave it out, or use "
                "cpu_allocator='default'."
            ),
        ),
        Constraint(
            lambda k: _retains(k) and bool(k.system.allocator.settings),
            lambda k: (
                f"cpu_allocator={k.set_options['cpu_allocator']!r} would override the environment "
                f"variable {k.system.allocator.settings[0]}. Unset the variable, or use "
                "cpu_allocator='default'."
            ),
        ),
        Constraint(
            lambda k: (
                k.set_options.get("cpu_allocator") == "huge_pages"
                and not k.system.allocator.huge_pages
            ),
            lambda _: (
                "cpu_allocator='huge_pages' needs Linux with 'madvise' in "
                "/sys/kernel/mm/transparent_hugepage/enabled, overcommitted memory and no limit "
                "on address space (ulimit -v, -d). Use cpu_allocator='retain'."
            ),
        ),
    ),
}
