"""What a record says of the machine, of the binary, and of how busy the machine was."""

import contextlib
import ctypes
import datetime
import hashlib
import os
import pathlib
import platform
import re
import resource
import subprocess
import time

# Processor time of other processes, of all cores, above which the machine counts as busy.
MOST_OTHERS = 0.1
# Likewise what the hypervisor gave to other machines.
MOST_STEAL = 0.03
QUIET_S, PATIENCE_S = 3, 120
# How long orphans of a bench, such as a browser's processes, may take to end.
ORPHANS_S = 5


def facts(root):
    """The machine, the compilers, and the network settings that a bench may depend on."""
    return {**processor(), "cores": os.cpu_count(), "ram_mib": ram_mib(), "kernel": kernel(),
            "hypervisor": hypervisor(), "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "tcp": {name: read(f"/proc/sys/net/{path}") for name, path in (
                ("congestion control", "ipv4/tcp_congestion_control"),
                ("available", "ipv4/tcp_available_congestion_control"), ("qdisc", "core/default_qdisc"))},
            "compilers": {"c": first_line(os.environ.get("CC", "cc"), "--version"),
                          "c++": first_line(os.environ.get("CXX", "c++"), "--version"),
                          "clang": first_line("clang", "--version"),
                          "rust": first_line("rustc", "--version", cwd=root)}}


def processor(cpuinfo="/proc/cpuinfo"):
    """The processor by what the system says: a name alone leaves open which generation it is."""
    fields = {}
    for line in (read(cpuinfo) or "").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return {"processor": fields.get("model name", platform.processor() or "unknown"),
            "vendor": fields.get("vendor_id") or fields.get("CPU implementer"),
            "family": fields.get("cpu family") or fields.get("CPU architecture"),
            "model": fields.get("model") or fields.get("CPU part"), "stepping": fields.get("stepping"),
            "flags": fields.get("flags") or fields.get("Features") or ""}


def kernel():
    return " ".join((platform.system(), platform.release(), platform.version(), platform.machine()))


def hypervisor():
    """What runs this machine as a virtual one, as far as it says so."""
    said = re.search(r"^Hypervisor vendor:\s*(.+)$", output("lscpu") or "", re.M)
    if said:
        return said[1]
    return "unnamed" if " hypervisor" in processor()["flags"] else None


def ram_mib():
    found = re.search(r"MemTotal:\s+(\d+)", read("/proc/meminfo") or "")
    return int(found[1]) // 1024 if found else None


def read(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return None


def output(*command, cwd=None):
    """What a program prints, its errors too; nothing if it is not there."""
    try:
        done = subprocess.run(command, cwd=cwd, text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip()


def first_line(*command, cwd=None):
    text = output(*command, cwd=cwd)
    return text.splitlines()[0] if text else None


def binary(path):
    """What is known of a binary of this project.

    `newer` are the sources that changed after it was built: cargo writes beside each binary what it was made from.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return {"version": None, "sha256": None, "built": None, "newer": None}
    built = path.stat().st_mtime
    made_from = read(path.with_name(f"{path.name}.d"))
    newer = None
    if made_from is not None:
        sources = re.split(r"(?<!\\) ", made_from.splitlines()[0].partition(": ")[2]) if made_from else []
        sources = [pathlib.Path(source.replace("\\ ", " ")) for source in sources if source]
        newer = sorted(str(source) for source in sources if source.is_file() and source.stat().st_mtime > built)
    return {"version": first_line(path, "--version"), "sha256": sha256(path),
            "built": datetime.datetime.fromtimestamp(built, datetime.timezone.utc).isoformat(timespec="seconds"),
            "newer": newer}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


class Load:
    """How busy the machine is while a bench runs."""

    def __init__(self, others_before=None):
        self.others_before, self.load_before = others_before, os.getloadavg()
        self.begun, self.ticks, self.own = time.monotonic(), ticks(), own_s()

    def end(self, busy):
        """The load before, meanwhile and after; `busy`: it was to run on a busy machine too."""
        seconds = max(time.monotonic() - self.begun, 1e-3)
        cores, of_all = os.cpu_count(), lambda s: round(100 * max(s, 0) / seconds / cores, 1)
        now = ticks()
        worked, stolen = ((after - before) / os.sysconf("SC_CLK_TCK") for before, after in zip(self.ticks, now))
        others, steal = of_all(worked - (own_s() - self.own)), of_all(stolen)
        return {"allowed": busy, "load_before": rounded(self.load_before), "load_after": rounded(os.getloadavg()),
                "others_before_percent": self.others_before, "others_percent": others, "steal_percent": steal,
                "busy": bool((self.others_before or 0) > 100 * MOST_OTHERS or others > 100 * MOST_OTHERS
                             or steal > 100 * MOST_STEAL)}


def rounded(numbers):
    return [round(number, 2) for number in numbers]


def ticks():
    """Ticks in which all processors worked, and that the hypervisor kept from them, since the start."""
    stat = re.search(r"^cpu +(.*)$", read("/proc/stat") or "", re.M)
    fields = [*map(int, stat[1].split()), *[0] * 8][:8] if stat else [0] * 8
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return user + nice + system + irq + softirq, steal


def own_s():
    """Seconds of processor time that processes took which this one has started and waited for, and this one."""
    return sum(use.ru_utime + use.ru_stime for use in map(resource.getrusage, (resource.RUSAGE_CHILDREN,
                                                                                resource.RUSAGE_SELF)))


def adopt_orphans():
    """Makes this process the parent of what its children leave behind: what nobody waits for would count as others'."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def reap_orphans():
    """Waits for adopted processes; those that have not ended by then count as others."""
    end = time.monotonic() + ORPHANS_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)


def others_percent(seconds=QUIET_S):
    """What others take of all processors in the next seconds."""
    before = ticks()[0]
    time.sleep(seconds)
    return round(100 * (ticks()[0] - before) / os.sysconf("SC_CLK_TCK") / seconds / os.cpu_count(), 1)


def wait_for_quiet():
    """Ends the program where something else computes for two minutes on end; else what the others still take."""
    end = time.monotonic() + PATIENCE_S
    while (others := others_percent()) > 100 * MOST_OTHERS:
        if time.monotonic() > end:
            raise SystemExit(f"results: the machine is busy: others take {others:.0f} % of its processors; "
                             "--busy measures all the same")
    return others
