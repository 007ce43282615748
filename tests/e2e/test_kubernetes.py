"""The manifests in deploy/kubernetes: valid by Kubernetes' own schemas, and in agreement with the
program, its image and each other. No cluster runs them here."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import kubernetes_validate
import pytest
import yaml

from conftest import BINARY

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in ROOT.glob("deploy/kubernetes/*/kustomization.yaml"))
# The oldest with everything that the manifests use, and the newest.
VERSIONS = ["1.30", "1.37"]


class Manifests:
    """What one folder has, by kind and name."""

    def __init__(self, folder):
        self.folder = folder
        self.kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        files = [folder / name for name in self.kustomization["resources"]]
        self.objects = [found for file in files for found in yaml.safe_load_all(file.read_text())]

    def of(self, *kinds):
        return [found for found in self.objects if found["kind"] in kinds]

    def workloads(self):
        return self.of("Deployment", "StatefulSet")

    def pods(self):
        """Each workload with its pod and that pod's only container."""
        for workload in self.workloads():
            pod = workload["spec"]["template"]["spec"]
            [container] = pod["containers"]
            yield workload, pod, container

    def ours(self):
        """Those that run the image of this program."""
        return [found for found in self.pods() if found[2]["image"] == "loquent"]

    def settings(self, args):
        """What holds for a command in a container, as the program itself reads it."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("LOQUENT_")}
        env = {**own, "LOQUENT_CONFIG": str(self.folder / "config.toml")}
        config = [BINARY, "config", "--json", *args]
        done = subprocess.run(config, capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        return {one["name"]: one["value"] for one in json.loads(done.stdout)["settings"]}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def manifests(request):
    return Manifests(request.param)


def test_there_are_manifests():
    assert [folder.name for folder in FOLDERS] == ["replicas", "stages"]


def test_every_file_is_used_and_every_object_valid(manifests):
    generated = [file for one in manifests.kustomization["configMapGenerator"] for file in one["files"]]
    named = {"kustomization.yaml", *manifests.kustomization["resources"], *generated}
    assert named == {path.name for path in manifests.folder.iterdir()}
    for found in manifests.objects:
        for version in VERSIONS:
            kubernetes_validate.validate(found, version, strict=True)
    names = [(found["kind"], found["metadata"]["name"]) for found in manifests.objects]
    assert len(set(names)) == len(names)


def test_what_is_invalid_is_found(manifests):
    [workload, *_] = manifests.workloads()
    workload["spec"]["template"]["spec"]["containers"][0]["startupProbe"]["periodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="periodSecond"):
        kubernetes_validate.validate(workload, VERSIONS[0], strict=True)


def test_selectors_find_their_pods(manifests):
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in manifests.workloads()]

    def found(selector):
        return [one for one in labels if selector.items() <= one.items()]

    for workload in manifests.workloads():
        assert len(found(workload["spec"]["selector"]["matchLabels"])) == 1
    for service in manifests.of("Service"):
        assert len(found(service["spec"]["selector"])) == 1
    for budget in manifests.of("PodDisruptionBudget"):
        assert len(found(budget["spec"]["selector"]["matchLabels"])) == 1
    for policy in manifests.of("NetworkPolicy"):
        assert len(found(policy["spec"]["podSelector"]["matchLabels"])) == 1
        for peer in policy["spec"]["ingress"][0]["from"]:
            assert found(peer["podSelector"]["matchLabels"])


def test_pods_may_do_only_what_they_need(manifests):
    for _, pod, container in manifests.pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"] and "startupProbe" in container


def test_services_never_become_settings(manifests):
    """A service named loquent gives every pod beside it LOQUENT_PORT=tcp://…"""
    for _, pod, _ in manifests.pods():
        assert pod["enableServiceLinks"] is False


def test_the_program_knows_every_setting(manifests):
    for _, _, container in manifests.ours():
        settings = manifests.settings(container["args"])
        for variable in container.get("env", []):
            name = variable["name"].removeprefix("LOQUENT_").lower().replace("_", "-")
            assert name in settings or f"$({variable['name']})" in str(container), variable
        if settings.get("threads"):
            assert settings["threads"] == container["resources"]["requests"]["cpu"]


def test_files_that_settings_name_are_mounted(manifests):
    for _, pod, container in manifests.ours():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {Path(one["mountPath"]): volumes[one["name"]] for one in container["volumeMounts"]}
        assert len(mounts) == len(volumes), "every volume is used"
        generated = [one["name"] for one in manifests.kustomization["configMapGenerator"]]
        # The third place that the program looks into.
        assert mounts[Path("/etc/loquent")]["configMap"]["name"] in generated
        paths = [value for value in manifests.settings(container["args"]).values() if str(value).startswith("/")]
        assert len(paths) >= 3
        for path in map(Path, paths):
            [volume] = [mounts[folder] for folder in path.parents if folder in mounts]
            if "api-keys" in path.name:
                [secret] = [
                    one for one in manifests.of("Secret") if one["metadata"]["name"] == volume["secret"]["secretName"]
                ]
                assert path.name in secret["stringData"] and not any(secret["stringData"].values())


def test_ports_and_names_agree(manifests):
    ports = {}
    for service in manifests.of("Service"):
        name = service["metadata"]["name"]
        [pod] = [
            container
            for workload, _, container in manifests.pods()
            if service["spec"]["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        ]
        own = {port["name"]: port for port in pod["ports"]}
        for port in service["spec"]["ports"]:
            target = own[port["targetPort"]]
            assert (target["containerPort"], target["protocol"]) == (port["port"], port["protocol"])
            ports.setdefault(name, set()).add(f"{port['protocol']} {port['port']}")
    for workload in manifests.of("StatefulSet"):
        [headless] = [
            one for one in manifests.of("Service") if one["metadata"]["name"] == workload["spec"]["serviceName"]
        ]
        assert headless["spec"]["clusterIP"] == "None"
    for _, _, container in manifests.ours():
        settings = manifests.settings(container["args"])
        own = {f"{one['protocol']} {one['containerPort']}" for one in container["ports"]}
        if container["args"][0] == "stage":
            assert own == {f"TCP {settings['listen'].rsplit(':')[-1]}"}
            continue
        assert own == {f"TCP {settings['port']}", f"UDP {settings['port']}"}
        assert settings["host"] == "0.0.0.0"
        named = (settings.get("stages") or "").split(",") if settings.get("stages") else []
        for variable in container.get("env", []):
            if variable["name"] == "LOQUENT_STORE":
                named.append(variable["value"].rsplit("@")[-1])
        assert named, "a server without others is no example"
        for address in named:
            host, port = address.rsplit(":", 1)
            assert f"TCP {port}" in ports[host]


def test_a_pod_has_time_to_drain(manifests):
    for _, pod, container in manifests.ours():
        if container["args"][0] != "serve":
            continue
        drain = int(manifests.settings(container["args"])["drain-timeout-s"])
        before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert before >= 2 * container["readinessProbe"]["periodSeconds"]
        assert before + drain + 10 <= pod["terminationGracePeriodSeconds"]


def test_probes_ask_what_the_server_answers(manifests, server):
    for _, _, container in manifests.ours():
        names = {port["name"]: port["protocol"] for port in container["ports"]}
        for probe in (container.get(f"{kind}Probe") for kind in ["startup", "readiness", "liveness"]):
            if probe is None or "tcpSocket" in probe:
                continue
            get = probe["httpGet"]
            settings = manifests.settings(container["args"])
            assert (get["scheme"] == "HTTPS") == bool(settings["tls-cert"]) and names[get["port"]] == "TCP"
            assert httpx.get(f"{server.url}{get['path']}").status_code == 200


def test_the_image_is_the_one_that_is_built(manifests):
    image = (ROOT / "packaging/container/Containerfile").read_text()
    user = int(re.search(r"useradd .*--uid (\d+)", image)[1])
    home = re.search(r"--home-dir (\S+)", image)[1]
    assert re.search(r'^ENTRYPOINT \["/usr/bin/loquent"\]$', image, re.M)
    assert [one["name"] for one in manifests.kustomization["images"]] == ["loquent"]
    for _, pod, container in manifests.ours():
        assert "command" not in container, "the image's own"
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
        if container["args"][0] == "serve":
            assert home in [one["mountPath"] for one in container["volumeMounts"]], "it must be writable"


def documents(path):
    return list(yaml.safe_load_all((ROOT / "deploy/kubernetes" / path).read_text()))


def test_the_runtime_for_kserve_serves_what_is_mounted(start, tmp_path):
    [runtime] = documents("kserve/runtime.yaml")
    assert (runtime["apiVersion"], runtime["kind"]) == ("serving.kserve.io/v1alpha1", "ServingRuntime")
    assert [one["name"] for one in runtime["spec"]["supportedModelFormats"]] == ["gguf"]
    [container] = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container", "KServe mounts the model into this one"
    # As in the pod, but for the place of the model and the port.
    shutil.copy(ROOT / "models/loquent-tiny.gguf", tmp_path)
    places = {"--models-dir=/mnt/models": f"--models-dir={tmp_path}", "--host=0.0.0.0": "--host=127.0.0.1"}
    own = ("--port=", "--log-format=")
    flags = [places.get(flag, flag) for flag in container["args"][1:] if not flag.startswith(own)]
    assert set(places) <= set(container["args"])
    served = start(*flags)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert get["port"] == container["ports"][0]["containerPort"] == 8080
        until = time.monotonic() + 60
        while httpx.get(f"{served.url}{get['path']}").status_code != 200:
            assert time.monotonic() < until, get["path"]
            time.sleep(0.05)
    annotations = runtime["spec"]["annotations"]
    metrics = httpx.get(f"{served.url}{annotations['prometheus.kserve.io/path']}").text
    assert annotations["prometheus.kserve.io/port"] == "8080" and "vllm:num_requests_waiting{" in metrics
    body = {"model": "any", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_the_pool_of_the_gateway_is_the_replicas():
    [pool, route] = documents("gateway/pool.yaml")
    replicas = Manifests(ROOT / "deploy/kubernetes/replicas")
    [(workload, _, container)] = replicas.ours()
    assert pool["spec"]["selector"]["matchLabels"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
    ports = [port["containerPort"] for port in container["ports"] if port["protocol"] == "TCP"]
    assert [port["number"] for port in pool["spec"]["targetPorts"]] == ports
    [backend] = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == (pool["kind"], pool["metadata"]["name"])
    group, version = pool["apiVersion"].split("/")
    assert (group, version) == (backend["group"], "v1")
