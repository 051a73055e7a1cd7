"""Join a Ray cluster, and make sure that its machines can run trials before any is sent there.

The driver keeps the ledger and must stand on a machine of the cluster; `ablate.sweep.launch` brings
it there from elsewhere. Each machine needs the same Ray, Python and Ablate.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import socket
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ablate.errors import UserError

_SECONDS = 5.0
_PROBE_SECONDS = 120.0
# What an HTTP/2 client, and so every gRPC one, says first: the preface and an empty SETTINGS frame.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_SETTINGS = 4
_LAUNCH = "ablate launch STUDY --address http://HEAD:8265 starts it there"


def join(address: str, allow: Iterable[str] = ()) -> None:
    """Connect this process to a running cluster and check every machine of it.

    Args:
        address: ``auto`` on a machine of the cluster, or ``host:port`` of its head.
        allow: the user's packages with components; local ones are sent to the machines.

    Raises:
        UserError: nothing answers there, this is no machine of that cluster, a version differs, or
            a machine lacks Ablate or one of the packages.
    """
    import ray

    allow = tuple(allow)
    _knock(resolve(address))
    carried = [] if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else local_packages(allow)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"py_modules": list(map(str, carried))} if carried else None,
        )
    except ray.exceptions.AuthenticationError as error:
        raise UserError(
            f"the cluster {address} wants a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) as on its head."
        ) from error
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        raise UserError(_why(address, str(error))) from error
    check_machines(allow)


def resolve(address: str) -> str:
    """Return ``host:port`` of the head that `address` means; nothing is contacted.

    Raises:
        UserError: the address has another form, or ``auto`` finds no cluster here.
    """
    if address.startswith(("http://", "https://", "ray://")):
        what = "a job server" if address.startswith("http") else "a Ray Client server"
        raise UserError(
            f"--address {address} is {what}, but the driver of a study runs on a machine of the "
            f"cluster, with --address auto or HEAD:6379. {_LAUNCH}."
        )
    if address == "auto":
        from ray._private.services import canonicalize_bootstrap_address_or_die

        try:
            return str(canonicalize_bootstrap_address_or_die("auto"))
        except (ConnectionError, ValueError) as error:
            raise UserError(
                "--address auto finds no Ray on this machine: start it with 'ray start', set "
                "RAY_ADDRESS=HEAD:6379, or leave --address away to run on this machine alone."
            ) from error
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(f"--address '{address}' must be auto or HOST:PORT, such as head:6379.")
    return address


def _knock(address: str) -> None:
    """Fail in seconds where Ray itself tries for two minutes and then ends the process."""
    host, _, port = address.rpartition(":")
    hint = "is the head up (ray status), is the port that of 'ray start', is it behind a firewall?"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _SECONDS) as line:
            line.settimeout(_SECONDS)
            line.sendall(_HELLO)
            reply = line.recv(9)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise UserError(
            f"the cluster at {address} does not answer ({reason.lower()}): {hint}"
        ) from error
    secret = os.environ.get("RAY_USE_TLS", "0") == "1"
    if not secret and (len(reply) < 4 or reply[3] != _SETTINGS):
        raise UserError(
            f"what answers at {address} is no Ray head, whose port is 6379 by default; 8265 is its "
            f"job server: {_LAUNCH}."
        )


def _why(address: str, text: str) -> str:
    """Say in a line why Ray refused this driver."""
    line = " ".join(text.split())
    if "ersion mismatch" in text:
        return (
            f"the cluster {address} has other versions: {line[:400]} Install the same everywhere."
        )
    if "Ray expects this IP address" in text or "node" in text.lower():
        return (
            f"this machine is no node of the cluster {address}: join it with "
            f"'ray start --address={address}', or run the driver there: {_LAUNCH}. ({line[:200]})"
        )
    return f"the cluster {address} cannot be joined: {line[:300] or 'Ray gives no reason'}"


def check_machines(allow: tuple[str, ...] = ()) -> None:
    """Ask every living machine of the cluster that Ray is connected to what is installed there.

    Raises:
        UserError: one lacks something, has other code, or does not answer in two minutes.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def probe(allow: tuple[str, ...]) -> dict[str, str]:
        # Sent by value, since the machine may have no Ablate to look it up in.
        try:
            from ablate.sweep.cluster import installed
        except ImportError as error:
            return {"missing": str(error)}
        return installed(allow)

    task = ray.remote(num_cpus=0, max_retries=0)(probe)
    asked = {
        node["NodeManagerHostname"] + " " + node["NodeManagerAddress"]: task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(allow)
        for node in ray.nodes()
        if node["Alive"]
    }
    here = installed(allow)
    for machine, answer in asked.items():
        try:
            there = ray.get(answer, timeout=_PROBE_SECONDS)
        except ray.exceptions.RayError as error:
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"the machine {machine} cannot run a task: {first[-1]}") from error
        if problem := difference(here, there):
            raise UserError(f"the machine {machine} of the cluster {problem}.")


def installed(allow: Iterable[str] = ()) -> dict[str, str]:
    """Describe this machine: versions of Python, Ray, torch and Ablate, and a hash of its code.

    Under ``missing`` stand the `allow` packages that cannot be found.
    """
    facts = {"python": platform.python_version(), "code": code_hash()}
    for name in ("ablate", "ray", "torch"):
        try:
            facts[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            facts[name] = "none"
    if missing := [name for name in allow if _find(name) is None]:
        facts["missing"] = f"No module named {', '.join(map(repr, missing))}"
    return facts


def code_hash() -> str:
    """Hash the sources that a worker runs; two machines with the same hash run the same code."""
    digest = hashlib.sha256()
    for package in ("sweep", "trial", "components", "experiments"):
        folder = _find(f"ablate.{package}")
        if folder is None:
            continue
        for file in sorted(folder.rglob("*.py")):
            if not file.name.endswith("_test.py"):
                digest.update(f"{package}/{file.relative_to(folder)}\n".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def difference(here: dict[str, str], there: dict[str, str]) -> str:
    """Say what keeps the machine `there` from running what `here` drives; empty if nothing does."""
    if "missing" in there:
        return (
            f"lacks a package ({there['missing']}): install Ablate and the packages of --allow in "
            "the Python that runs 'ray start' there"
        )
    for name in ("python", "ray", "ablate", "torch"):
        if there[name] != here[name]:
            return f"has {name} {there[name]}, the driver's has {here[name]}: install the same"
    if there["code"] != here["code"]:
        return (
            f"has Ablate {there['ablate']} with other code ({there['code']}) than the driver's "
            f"({here['code']}): install the same commit"
        )
    return ""


def check_resources(cpus: float, gpus: float) -> None:
    """Make sure that one machine of the connected cluster has what one job takes.

    Raises:
        UserError: none has; Tune would wait for ever.
    """
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(m.get("CPU", 0.0) >= cpus and m.get("GPU", 0.0) >= gpus for m in machines):
        return
    where = " on one machine" if len(machines) > 1 else ""
    for name, need in (("GPU", gpus), ("CPU", cpus)):
        have = max((machine.get(name, 0.0) for machine in machines), default=0.0)
        if need > have:
            raise UserError(
                f"one trial asks for {need:g} {name} and Ray has {have:g}{where}: "
                f"lower resources.{name.lower()}s of the study."
            )
    raise UserError(
        f"one trial asks for {cpus:g} CPU and {gpus:g} GPU, which no machine of the cluster has "
        "together: lower resources of the study."
    )


def local_packages(names: Iterable[str]) -> list[Path]:
    """Return folder or file of each package that is not installed but lies in the user's folder."""
    found = []
    for name in names:
        place = _find(name.partition(".")[0])
        installed_at = {Path(sys.prefix), Path(sys.base_prefix)}
        if place is not None and not any(
            place.is_relative_to(prefix / "lib") for prefix in installed_at
        ):
            found.append(place)
    return found


def _find(name: str) -> Path | None:
    """Return where a package or module lies, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    if places:
        return Path(places[0])
    return Path(spec.origin) if spec.origin else None
