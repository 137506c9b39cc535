"""What this machine has for us: physical cores, free memory, processor extensions. The system says it.

A container or a control group may allow less than the machine has; the smaller number is the one given.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from specllm.runtime.build_flags import X86_EXTENSIONS, processor_extensions

ROOT = Path("/")


def physical_cores(*, system: str = sys.platform, root: Path = ROOT) -> int:
    """Cores this process may compute on at once, at least 1.

    Hyper-threads, a Mac's efficiency cores and what affinity or a control group's quota withholds do not
    count.
    """
    if system == "darwin":
        return _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu") or os.cpu_count() or 1
    allowed = _allowed_cpus()
    cores = _linux_cores(root, allowed) if system.startswith("linux") else 0
    quota = _cpu_quota(root) if system.startswith("linux") else None
    cores = cores or len(allowed) or 1
    return max(1, min(cores, int(quota))) if quota is not None else cores


def available_memory_bytes(*, system: str = sys.platform, root: Path = ROOT) -> int | None:
    """Bytes usable now without swapping, file caches that can be dropped included; None if unknown."""
    if system == "darwin":
        return _mac_available_bytes()
    if system == "win32":
        return _windows_available_bytes()
    left = [_meminfo_available(root), *_group_memory_left(root)]
    return min((n_bytes for n_bytes in left if n_bytes is not None), default=None)


def unused_extensions(features: frozenset[str], *, processor: frozenset[str] | None = None) -> list[str]:
    """The x86 extensions the processor has and a build with `features` does not use, by llama.cpp's names."""
    processor = processor_extensions() if processor is None else processor
    return [
        name
        for option, needs in X86_EXTENSIONS.items()
        if needs <= processor and (name := option.removeprefix("GGML_")) not in features and name != "SSE42"
    ]


def is_virtual_machine(*, processor: frozenset[str] | None = None) -> bool:
    """Whether the processor says that a hypervisor runs it (x86 Linux; elsewhere False)."""
    return "hypervisor" in (processor_extensions() if processor is None else processor)


def _allowed_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _linux_cores(root: Path, allowed: frozenset[int]) -> int:
    """Distinct cores among the allowed processors; 0 where Linux does not say (some ARM boards)."""
    cores = set()
    for cpu in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        core = _read(topology / "core_id")
        if core is not None:
            cores.add((_read(topology / "physical_package_id"), _read(topology / "cluster_id"), core))
    return len(cores) or len(_cpuinfo_cores(root, allowed))


def _cpuinfo_cores(root: Path, allowed: frozenset[int]) -> set[tuple[str, str]]:
    cores = set()
    for block in (_read(root / "proc/cpuinfo") or "").split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        facts = {name.strip(): value.strip() for name, _, value in lines}
        if "core id" in facts and facts.get("processor", "").isdigit() and int(facts["processor"]) in allowed:
            cores.add((facts.get("physical id", "0"), facts["core id"]))
    return cores


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's control group and all above it, version 2 (controller '') or version 1."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controller
        folder = base / path.lstrip("/")
        while folder != base:  # in a container the path may be the host's: then only the base is there
            yield folder
            folder = folder.parent
        yield base


def _cpu_quota(root: Path) -> float | None:
    """Processors' worth of time per second, the least of all levels; None without a limit."""
    quotas = []
    for folder in _group_folders(root, ""):
        quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    for folder in _group_folders(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas) if quotas else None


def _group_memory_left(root: Path) -> Iterator[int]:
    """Limit minus use, without file caches that can be dropped, for every level that has a limit."""
    names = {
        "": ("memory.max", "memory.current", "inactive_file"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    for controller, (limit_name, use_name, cache_name) in names.items():
        for folder in _group_folders(root, controller):
            limit, use = _read(folder / limit_name) or "", _read(folder / use_name) or ""
            if limit.isdigit() and use.isdigit():
                cache = re.search(rf"^{cache_name} (\d+)$", _read(folder / "memory.stat") or "", re.MULTILINE)
                yield max(0, int(limit) - int(use) + (int(cache[1]) if cache else 0))


def _meminfo_available(root: Path) -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _mac_available_bytes() -> int | None:
    """Pages that are free or can be freed at once, as vm_stat counts them."""
    return parse_vm_stat(_output("vm_stat"))


def parse_vm_stat(text: str) -> int | None:
    """Free, inactive, speculative and purgeable pages of macOS's `vm_stat`, in bytes, or None."""
    page = re.search(r"page size of (\d+) bytes", text)
    counts = re.findall(r"^Pages (?:free|inactive|speculative|purgeable):\s+(\d+)\.", text, re.MULTILINE)
    return int(page[1]) * sum(map(int, counts)) if page and counts else None


def _windows_available_bytes() -> int | None:
    import ctypes

    class MemoryStatus(ctypes.Structure):  # MEMORYSTATUSEX
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            ("total", ctypes.c_ulonglong),
            ("available", ctypes.c_ulonglong),
            ("rest", ctypes.c_ulonglong * 5),
        )

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    kernel32 = getattr(ctypes, "windll", None)
    if kernel32 is None or not kernel32.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.available)


def _sysctl(name: str) -> int:
    """A number of macOS's sysctl, 0 where it has none of that name."""
    text = _output("sysctl", "-n", name).strip()
    return int(text) if text.isdigit() else 0


def _output(*command: str) -> str:
    """What a system tool prints, empty where it fails or is missing."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _read(path: Path) -> str | None:
    """The text of a small system file without its last newline, None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
