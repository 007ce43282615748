"""`python -m loquent`: runs the binary of this environment, whether or not it is on the path."""

import os
import sys
import sysconfig


def find_binary():
    """Where pip puts scripts: the environment's folder, or the user's for `pip install --user`."""
    schemes = [None, "osx_framework_user" if sys.platform == "darwin" else "posix_user"]
    folders = [sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts") for scheme in schemes]
    for folder in folders:
        binary = os.path.join(folder, "loquent")
        if os.path.isfile(binary):
            return binary
    raise SystemExit("loquent: the binary is not in " + " or ".join(folders) + ": install the package again")


if __name__ == "__main__":
    binary = find_binary()
    os.execv(binary, [binary, *sys.argv[1:]])
