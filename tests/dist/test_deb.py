"""The package for Debian, unpacked into a clean folder; `make test-dist` installs it into a clean system."""

import configparser
import shutil
import subprocess

import pytest

from distribution import deb

from .conftest import assert_serves

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="dpkg-deb is not installed")


@pytest.fixture(scope="module")
def root(packages, tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    subprocess.run(["dpkg-deb", "-x", packages.one("*.deb"), folder], check=True)
    return folder


def field(package, name):
    return subprocess.run(["dpkg-deb", "-f", package, name], check=True, capture_output=True, text=True).stdout.strip()


def test_it_serves_from_a_clean_folder(root, tmp_path):
    assert_serves(root / "usr/bin/loquent", tmp_path / "home")


def test_it_asks_for_the_c_library_that_it_needs(packages):
    package = packages.one("*.deb")
    assert field(package, "Package") == "loquent"
    assert "libc6 (>= 2." in field(package, "Depends")
    machine = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True)
    assert field(package, "Architecture") == machine.stdout.strip()


def test_the_sums_are_those_of_the_files(packages, root, tmp_path):
    subprocess.run(["dpkg-deb", "-e", packages.one("*.deb"), tmp_path / "control"], check=True)
    subprocess.run(["md5sum", "--quiet", "-c", tmp_path / "control/md5sums"], cwd=root, check=True)
    for script in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", tmp_path / "control" / script], check=True)


@pytest.fixture
def unit():
    """The sections of the service; of a key that is there several times, the last."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(deb.unit())
    return parser


def test_the_service_reads_the_files_that_it_watches(unit):
    service = unit["Service"]
    assert "--api-key-file /etc/loquent/keys" in service["ExecStart"]
    # Credentials are copies, which stay as they were when the service started.
    assert not [key for key in service if "Credential" in key]
    group = service["SupplementaryGroups"]
    # systemd refuses a dynamic user (217/USER) with the name of a group that exists.
    assert service["DynamicUser"] == "yes" and group not in ("loquent", service.get("User"))
    for script in ("postinst", "postrm"):
        assert group in (deb.FOLDER / script).read_text()


def test_the_service_starts_again_until_it_can_unless_a_setting_is_wrong(unit):
    service = unit["Service"]
    assert (unit["Unit"]["StartLimitIntervalSec"], service["Restart"]) == ("0", "on-failure")
    # tests/e2e/test_settings.py has what ends with this status.
    assert service["RestartPreventExitStatus"] == "2"
    assert service["EnvironmentFile"] == "-/etc/loquent/environment"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_understands_the_unit(root):
    command = ["systemd-analyze", "verify", "--man=no", f"--root={root}", "loquent.service"]
    done = subprocess.run(command, capture_output=True, text=True)
    # The root has no targets of the system.
    about_it = [line for line in done.stderr.splitlines() if "loquent.service" in line and "not found" not in line]
    assert not about_it, done.stderr
