"""Facts about this machine: versions, devices, known problems."""

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


def advertises_amx() -> bool:
    """Whether the flags of the CPU include AMX."""
    return any(line.startswith("flags") and "amx" in line for line in cpuinfo())


def bfloat16_is_fatal() -> bool:
    """Whether a small bfloat16 matrix product ends a new process with an illegal instruction."""
    code = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return process.returncode == -signal.SIGILL


def known_problems() -> list[str]:
    """Advice for each known problem of this machine, usually none."""
    return [AMX_ADVICE] if advertises_amx() and bfloat16_is_fatal() else []
