"""Cores and memory, from the files of machines that are not this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllm.runtime import machine

CPUINFO = """processor\t: {0}
physical id\t: {1}
core id\t\t: {2}
"""
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            500000.
Pages inactive:                           20000.
Pages speculative:                         3000.
Pages wired down:                        100000.
Pages purgeable:                            500.
"""
GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_allowed_cpus", lambda: frozenset(range(8)))


def hyper_threads() -> dict[str, str]:
    """Eight processors on four cores."""
    folder = "sys/devices/system/cpu/cpu{0}/topology/{1}"
    return {
        folder.format(cpu, name): value
        for cpu in range(8)
        for name, value in (("core_id", f"{cpu % 4}\n"), ("physical_package_id", "0\n"))
    }


def test_this_machine_has_a_core_and_some_memory() -> None:
    assert machine.physical_cores() >= 1
    left = machine.available_memory_bytes()
    assert left is None or left > 0


def test_hyper_threads_count_once(tmp_path: Path) -> None:
    assert machine.physical_cores(system="linux", root=write(tmp_path, hyper_threads())) == 4


def test_only_cores_of_allowed_processors_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_allowed_cpus", lambda: frozenset({0, 1, 4}))
    assert machine.physical_cores(system="linux", root=write(tmp_path, hyper_threads())) == 2


def test_cpuinfo_is_asked_where_there_is_no_topology(tmp_path: Path) -> None:
    blocks = [CPUINFO.format(cpu, cpu % 2, cpu // 4) for cpu in range(8)]
    assert machine.physical_cores(system="linux", root=write(tmp_path, {"proc/cpuinfo": "\n".join(blocks)})) == 4


def test_processors_count_where_nothing_tells_cores(tmp_path: Path) -> None:
    assert machine.physical_cores(system="linux", root=tmp_path) == 8
    assert machine.physical_cores(system="win32", root=tmp_path) == 8


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("x", 4)])
def test_a_quota_of_the_control_group_limits_cores(tmp_path: Path, quota: str, cores: int) -> None:
    root = write(
        tmp_path,
        hyper_threads()
        | {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": quota,
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        },
    )
    assert machine.physical_cores(system="linux", root=root) == cores


def test_a_quota_of_version_1_limits_cores(tmp_path: Path) -> None:
    root = write(tmp_path, hyper_threads() | {
        "proc/self/cgroup": "4:cpu,cpuacct:/job\n2:memory:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n"})  # fmt: skip
    assert machine.physical_cores(system="linux", root=root) == 3


def test_a_mac_counts_its_performance_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_output", lambda *command: {"hw.perflevel0.physicalcpu": "6\n"}.get(command[-1], ""))
    assert machine.physical_cores(system="darwin") == 6
    monkeypatch.setattr(machine, "_output", lambda *command: {"hw.physicalcpu": "4\n"}.get(command[-1], ""))
    assert machine.physical_cores(system="darwin") == 4


def test_available_memory_is_what_linux_says(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   2097152 kB\n"})
    assert machine.available_memory_bytes(system="linux", root=root) == 2 * GIB


def test_a_control_group_may_leave_less(tmp_path: Path) -> None:
    root = write(tmp_path, {
        "proc/meminfo": "MemAvailable:   8388608 kB\n", "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": f"{4 * GIB}\n", "sys/fs/cgroup/box/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n"})  # fmt: skip
    assert machine.available_memory_bytes(system="linux", root=root) == 3 * GIB // 2


def test_a_control_group_without_a_limit_changes_nothing(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable:   1048576 kB\n",
            "proc/self/cgroup": "0::/box\n",
            "sys/fs/cgroup/box/memory.max": "max\n",
            "sys/fs/cgroup/box/memory.current": "5\n",
        },
    )
    assert machine.available_memory_bytes(system="linux", root=root) == GIB


def test_version_1_limits_memory_also_where_its_path_is_the_hosts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "3:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}",
        },
    )
    assert machine.available_memory_bytes(system="linux", root=root) == GIB


def test_memory_is_unknown_where_nothing_tells(tmp_path: Path) -> None:
    assert machine.available_memory_bytes(system="linux", root=tmp_path) is None


def test_vm_stat_pages_become_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_output", lambda *command: VM_STAT)
    assert machine.available_memory_bytes(system="darwin") == 33_500 * 16384
    assert machine.parse_vm_stat("vm_stat: not found") is None


def test_extensions_a_build_leaves_out_are_named() -> None:
    processor = frozenset({"avx", "avx2", "fma", "f16c", "bmi2", "sse4_2", "avx512_vnni"})
    assert machine.unused_extensions(frozenset({"AVX", "FMA"}), processor=processor) == [
        "F16C",
        "BMI2",
        "AVX2",
        "AVX512_VNNI",
    ]
    assert machine.unused_extensions(frozenset(), processor=frozenset()) == []


def test_a_hypervisor_shows_in_the_flags() -> None:
    assert machine.is_virtual_machine(processor=frozenset({"hypervisor"}))
    assert not machine.is_virtual_machine(processor=frozenset({"avx"}))
