"""The files of docs/cluster are what Kubernetes, Docker Compose and Slurm take."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "cluster"


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The Kubernetes objects of a file, by kind."""
    found = [part for part in yaml.safe_load_all((FOLDER / name).read_text()) if part]
    return {part["kind"]: part for part in found}


def pinned(package: str) -> str:
    text = (ROOT / "constraints.txt").read_text()
    found = re.search(rf"^{package}==(\S+)$", text, re.MULTILINE)
    assert found, package
    return found[1]


def groups(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml"])
def test_a_ray_cluster_is_what_kuberay_takes(name: str) -> None:
    kind = "RayCluster" if name == "raycluster.yaml" else "RayJob"
    made = documents(name)[kind]
    assert made["apiVersion"] == "ray.io/v1"
    assert re.fullmatch(r"[a-z][a-z0-9-]*", made["metadata"]["name"])
    cluster = made["spec"] if kind == "RayCluster" else made["spec"]["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == pinned("ray")
    images = set()
    for group in groups(cluster):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        (container,) = pod["containers"]
        images.add(container["image"])
        assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert all(isinstance(value, str) for value in container["resources"]["limits"].values())
        assert all(isinstance(one.get("value", ""), str) for one in container["env"])
        assert {one["name"] for one in container["env"]} >= {"RAY_USAGE_STATS_ENABLED"}
    assert len(images) == 1
    head, *workers = groups(cluster)
    assert head["rayStartParams"]["num-cpus"] == "0"
    ports = {
        p["name"]: p["containerPort"] for p in head["template"]["spec"]["containers"][0]["ports"]
    }
    assert ports == {"gcs-server": 6379, "dashboard": 8265}
    for group in workers:
        assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_charts_values_describe_the_same_cluster() -> None:
    values = yaml.safe_load((FOLDER / "kuberay_values.yaml").read_text())
    cluster = documents("raycluster.yaml")["RayCluster"]["spec"]
    made, (worker,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    image = f"{values['image']['repository']}:{values['image']['tag']}"
    assert image == made["template"]["spec"]["containers"][0]["image"]
    assert values["head"]["rayVersion"] == cluster["rayVersion"]
    assert values["head"]["rayStartParams"] == made["rayStartParams"]
    for given, group in ((values["head"], made), (values["worker"], worker)):
        pod = group["template"]["spec"]
        assert given["resources"] == pod["containers"][0]["resources"]
        assert given["volumes"] == pod.get("volumes", [])
        assert given["volumeMounts"] == pod["containers"][0].get("volumeMounts", [])
    same = ("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams")
    assert all(values["worker"][key] == worker[key] for key in same)
    token = next(one for one in values["common"]["containerEnv"] if one["name"] == "RAY_AUTH_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "ablate", "key": "auth_token"}


def test_the_job_drives_on_a_volume_that_one_pod_has_at_a_time() -> None:
    job = documents("rayjob.yaml")["RayJob"]["spec"]
    claim = documents("raycluster.yaml")["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    pod = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    place = pod["containers"][0]["volumeMounts"][0]["mountPath"]
    env = yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]
    assert env["ABLATE_HOME"].startswith(f"{place}/")
    words = job["entrypoint"].split()
    assert words[:2] == ["ablate", "run"]
    assert words[-3:] == ["--address", "auto", "--take-over"]


def test_the_image_has_the_pinned_ray_and_the_job_server() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    assert f"FROM rayproject/ray:{pinned('ray')}-py311-gpu" in lines
    assert any("constraints.txt" in line and "ablate[cluster]" in line for line in lines)


def test_the_tracker_s_services_fit_together() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"postgres", "minio", "bucket", "mlflow"}
    for service in services.values():
        assert ("image" in service) != ("build" in service)
        depends = service.get("depends_on", {})
        assert set(depends) <= set(services)
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"]
    tracker = services["mlflow"]
    assert f"mlflow=={pinned('mlflow')}" in tracker["build"]["dockerfile_inline"]
    command = tracker["command"]
    assert "@postgres:5432/mlflow" in command
    assert "--artifacts-destination s3://mlflow" in command
    assert services["bucket"]["command"].endswith("store/mlflow")
    assert tracker["environment"]["MLFLOW_S3_ENDPOINT_URL"] == "http://minio:9000"
    # No secret stands in the file, and the stack refuses to start without them.
    text = (FOLDER / "compose.yaml").read_text()
    assert not re.search(r"PASSWORD: (?!\$\{)", text)
    assert text.count(":?put it into .env}") == 2


def test_no_file_names_a_registry() -> None:
    for file in FOLDER.iterdir():
        for image in re.findall(r"(?:image:|FROM) (\S+)", file.read_text()):
            assert "." not in image.partition("/")[0].partition(":")[0], (file.name, image)


# Stand-ins for Slurm's programs, Ray's and Ablate's; each writes down how it was called.
STANDINS = {
    "scontrol": "printf 'm1\\nm2\\nm3\\n'",
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
    "hostname": "echo 10.0.0.7 172.17.0.1",
    "ray": "[[ $1 != start ]] || exec sleep 30",
    "ablate": "trap 'exit 130' TERM\nwhile [[ -e $SLOW ]]; do sleep 0.1; done\nexit 1",
}


def batch(place: Path, **env: str) -> subprocess.Popen[bytes]:
    for name, body in STANDINS.items():
        program = place / name
        program.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> "{place}/calls"\n{body}\n')
        program.chmod(0o755)
    known = {
        "PATH": f"{place}{os.pathsep}{os.environ['PATH']}",
        "ABLATE_BIN": str(place),
        "ABLATE_HOME": str(place / "home"),
        "SLURM_JOB_NODELIST": "m[1-3]",
        "SLURM_JOB_ID": "41234567",
        "SLURM_CPUS_PER_TASK": "16",
        "SLOW": str(place / "slow"),
    }
    command = ["bash", str(FOLDER / "slurm.sbatch"), "quickstart", "seeds=3"]
    return subprocess.Popen(command, env={**os.environ, **known, **env}, start_new_session=True)


def end(job: subprocess.Popen[bytes]) -> int:
    code = job.wait(30)
    os.killpg(job.pid, signal.SIGKILL)
    return code


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@needs_bash
def test_the_batch_file_starts_head_workers_and_driver_and_ends_as_the_driver_does(
    tmp_path: Path,
) -> None:
    assert end(batch(tmp_path)) == 1
    calls = (tmp_path / "calls").read_text()
    address = "10.0.0.7:34567"
    assert "--nodelist=m1" in calls
    assert "ray start --head --node-ip-address=10.0.0.7 --port=34567" in calls
    assert "srun --overlap --nodes=2 --ntasks-per-node=1 --exclude=m1" in calls
    assert f"ray start --address={address} --block --disable-usage-stats --num-cpus=16" in calls
    assert f"ablate run quickstart seeds=3 --address {address}\n" in calls


@needs_bash
def test_the_batch_file_passes_slurm_s_warning_on_and_takes_its_own_study_over(
    tmp_path: Path,
) -> None:
    (tmp_path / "slow").touch()
    job = batch(tmp_path, SLURM_RESTART_COUNT="1")
    calls = tmp_path / "calls"
    until = time.monotonic() + 20
    while not calls.exists() or "ablate run" not in calls.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    (driver,) = [line for line in calls.read_text().splitlines() if line.startswith("ablate")]
    assert driver.endswith("--take-over")
    time.sleep(0.3)
    os.kill(job.pid, signal.SIGTERM)
    assert end(job) == 130


def test_the_batch_file_has_no_trap_of_the_shell() -> None:
    program = Path(sys.executable).with_name("shellcheck")
    found = subprocess.run(
        [program, FOLDER / "slurm.sbatch"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "")


@needs_bash
def test_the_batch_file_refuses_to_start_without_a_study_or_a_home(tmp_path: Path) -> None:
    file = str(FOLDER / "slurm.sbatch")
    bare = {"PATH": os.environ["PATH"]}
    assert subprocess.run(["bash", "-n", file], check=False).returncode == 0
    for arguments, said in (([], "usage: sbatch"), (["quickstart"], "ABLATE_HOME")):
        run = subprocess.run(
            ["bash", file, *arguments], env=bare, capture_output=True, text=True, check=False
        )
        assert run.returncode == 1
        assert said in run.stderr
