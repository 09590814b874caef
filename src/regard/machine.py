"""Facts about this machine: versions, devices, free memory, known problems."""

import functools
import os
import platform
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = (
    "regard",
    "torch",
    "triton",
    "transformers",
    "torch-geometric",
    "accelerate",
    "safetensors",
    "tokenizers",
    "matplotlib",
    "scipy",
    "starlette",
    "typer",
)

AMX_ADVICE = (
    "This processor advertises AMX, but a bfloat16 matrix product dies here with an illegal instruction. "
    "Set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment before Python starts."
)


def versions() -> dict[str, str | None]:
    """The version of Python and of each package; None if it is not installed."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The name of the CPU and its number of cores."""
    names = [line.partition(":")[2].strip() for line in cpuinfo() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def cpuinfo() -> list[str]:
    """The lines of /proc/cpuinfo; empty if the system has no such file."""
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def devices() -> list[str]:
    """The devices that torch can use, the CPU first."""
    return [processor()] + [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on a device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limit = cgroup_free_memory()
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return min(int(lines["MemAvailable"].split()[0]) * 1024, limit)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 62


def cgroup_free_memory() -> int:
    """Bytes that the control group of this process leaves free; a very large number without one."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
    except OSError:
        return 1 << 62
    return 1 << 62 if limit == "max" else max(int(limit) - int(used), 0)


def format_bytes(count: float) -> str:
    """Bytes as text.

    >>> format_bytes(3 * 2**30)
    '3.0 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def advertises_amx() -> bool:
    """Whether the flags of the CPU include AMX."""
    return any(line.startswith("flags") and "amx" in line for line in cpuinfo())


def bfloat16_is_fatal() -> bool:
    """Whether a small bfloat16 matrix product ends a new process with an illegal instruction."""
    code = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return process.returncode == -signal.SIGILL


@functools.cache
def fast_bfloat16(device: str) -> bool:
    """Whether a CPU ("cpu") or GPU ("cuda") has instructions for products of bfloat16, and they work."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    flags = next((line.split() for line in cpuinfo() if line.startswith("flags")), [])
    return "avx512_bf16" in flags and not (advertises_amx() and bfloat16_is_fatal())


def known_problems() -> list[str]:
    """Advice for each known problem of this machine, usually none."""
    return [AMX_ADVICE] if advertises_amx() and bfloat16_is_fatal() else []
