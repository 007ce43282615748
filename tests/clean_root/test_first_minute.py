"""From the first command to an answer on a machine without Rust, within a minute: by the .deb and by the wheel."""

import platform

import pytest

from dist import lines

#: What was promised for the whole of it, installing included.
MOST_SECONDS = 60

# Serves as a user who is not root, and asks once the banner says where.
ASK = """
useradd --create-home somebody
su somebody -c '
    {loquent} serve 2>~/log &
    until grep -q " Chat: " ~/log; do
        kill -0 $! || {{ cat ~/log; exit 1; }}
        sleep 0.1
    done
    {loquent} chat --url http://127.0.0.1:8080 "What is Loquent?" >~/answer
    kill -TERM $!
    wait $! || true
'
cat ~somebody/answer
"""


def assert_answered(outcome, record_property):
    printed, seconds = outcome
    assert "Loquent" in printed, printed
    assert seconds < MOST_SECONDS, f"{seconds:.1f} s"
    record_property("seconds", f"{seconds:.1f}")
    print(f"answered after {seconds:.1f} s")


def test_nothing_of_a_compiler_is_there(clean_root):
    clean_root.run("! command -v cargo && ! command -v cc && ! ls /usr/lib/*/libstdc++.so")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the documents name the package of x86-64")
@pytest.mark.parametrize("line", [lines.DEB, lines.BUILT_DEB])
def test_the_deb_answers(clean_root, record_property, line):
    clean_root.carry("loquent_*_amd64.deb")
    # As root, who needs no sudo; the package lies where the line says.
    apt = line.removeprefix("sudo ")
    script = f"mkdir -p /packages/target\nln -s /packages /packages/target/dist\ncd /packages\n{apt} >/dev/null\n"
    assert_answered(clean_root.run(script + ASK.format(loquent="/usr/bin/loquent")), record_property)


def test_the_deb_leaves_nothing_behind(clean_root):
    package = clean_root.carry("loquent_*.deb")
    # groupadd locks the files of users, and keeps the last version of each.
    files = 'find / -xdev -not -path "/var/*" -not -path "/tmp/*" -not -path "/proc/*" -not -path "/etc/*-"'
    files += " -not -path /etc/.pwd.lock | sort"
    printed, _ = clean_root.run(f"""
        {files} >/tmp/before
        dpkg -i {package} >/dev/null
        stat -c "%a %U %G" /etc/loquent/keys
        grep -Ec "^sk-[0-9a-f]{{48}}$" /etc/loquent/keys
        dpkg -i {package} >/dev/null
        dpkg --purge loquent >/dev/null
        {files} >/tmp/after
        diff /tmp/before /tmp/after
        grep -c ^loquent /etc/group || true
    """)
    assert printed.split() == ["640", "root", "loquent-config", "1", "0"]


def test_the_group_stays_with_the_administrators_files(clean_root):
    package = clean_root.carry("loquent_*.deb")
    printed, _ = clean_root.run(f"""
        dpkg -i {package} >/dev/null
        touch /etc/loquent/config.toml
        chgrp loquent-config /etc/loquent/config.toml
        dpkg --purge loquent >/dev/null
        stat -c "%n %G" /etc/loquent/*
    """)
    assert printed.split() == ["/etc/loquent/config.toml", "loquent-config"]


@pytest.mark.timeout(120)
def test_the_wheel_answers(clean_root, record_property):
    wheel = clean_root.carry(f"loquent-*_{platform.machine()}.whl")
    script = f"""
        python3 -m venv /opt/loquent
        /opt/loquent/bin/pip install --quiet --no-index {wheel}
    """
    assert_answered(clean_root.run(script + ASK.format(loquent="/opt/loquent/bin/loquent")), record_property)
