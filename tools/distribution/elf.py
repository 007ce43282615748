"""What a Linux binary needs of the system that runs it, read from its dynamic section."""

import struct
from dataclasses import dataclass
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}
SHT_DYNAMIC = 6
SHT_SYMTAB = 2
SHT_GNU_VERNEED = 0x6FFFFFFE
DT_NEEDED = 1


@dataclass(frozen=True)
class Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True)
class Needs:
    """Shared libraries, and the newest version of the symbols of each: {"libc.so.6": {"GLIBC": (2, 17)}}."""

    machine: str
    libraries: tuple
    versions: dict
    #: Whether it still has its table of symbols.
    has_symbols: bool

    @property
    def glibc(self):
        """The oldest C library that can run it."""
        found = [sets["GLIBC"] for sets in self.versions.values() if "GLIBC" in sets]
        return max(found, default=None)


def read(path):
    data = Path(path).read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit little-endian ELF file")
    machine = struct.unpack_from("<H", data, 18)[0]
    sections = read_sections(data)
    return Needs(
        MACHINES.get(machine, f"machine {machine}"),
        tuple(read_libraries(data, sections)),
        read_versions(data, sections),
        any(section.kind == SHT_SYMTAB for section in sections),
    )


def read_sections(data):
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    found = []
    for at in range(start, start + size * count, size):
        _, kind, _, _, offset, length, link, info = struct.unpack_from("<IIQQQQII", data, at)
        found.append(Section(kind, offset, length, link, info))
    return found


def text(data, strings, offset):
    start = strings.offset + offset
    return data[start : data.index(b"\0", start)].decode()


def read_libraries(data, sections):
    for section in sections:
        if section.kind == SHT_DYNAMIC:
            for at in range(section.offset, section.offset + section.size, 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag == DT_NEEDED:
                    yield text(data, sections[section.link], value)


def read_versions(data, sections):
    """The newest of each numbered set of symbols; names without a number (GLIBC_PRIVATE) are left out."""
    versions = {}
    for section in sections:
        if section.kind == SHT_GNU_VERNEED:
            for library, name in version_names(data, section, sections[section.link]):
                word, _, number = name.partition("_")
                if number.replace(".", "").isdigit():
                    sets = versions.setdefault(library, {})
                    sets[word] = max(sets.get(word, ()), tuple(map(int, number.split("."))))
    return versions


def version_names(data, section, strings):
    at = section.offset
    for _ in range(section.info):
        _, count, file, first, following = struct.unpack_from("<HHIII", data, at)
        library = text(data, strings, file)
        name_at = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, name_at)
            yield library, text(data, strings, name)
            name_at += step
        at += following
