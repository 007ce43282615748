"""The commands that install Loquent, as the documents print them, and where a test runs each.

test_installation.py holds the documents against this list: a command that is not here may not be printed.
"""

# Run by test_installation.py, with the indexes and the release on loopback.
PIP = "pip install loquent"
UVX = "uvx loquent serve"
NPM = "npm install @loquent/client"
SCRIPT = "curl -fsSL RELEASE/install.sh | sh"
WHEEL = "pip install target/dist/loquent-*.whl"
TARBALL = "npm install ./target/dist/loquent-client-*.tgz"
# Run by tests/clean_root as root, in a clean system (`make test-dist`).
DEB = "sudo apt install ./loquent_0.1.0_amd64.deb"
BUILT_DEB = "sudo apt install ./target/dist/loquent_*.deb"
IMAGE = "podman build -t loquent ."

ALL = {name: line for name, line in globals().items() if name.isupper()}
