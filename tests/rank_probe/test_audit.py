"""Tests of `rank-probe audit`: each check against one misconfiguration in a healthy launch.

Also covers how the ranks exchange their facts.
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rank_probe.audit import command
from rank_probe.audit.exchange import Exchange, NoAnswer, why_not
from rank_probe.audit.facts import Facts, GpuFacts, Interface, Port, pack
from rank_probe.audit.findings import AuditStatus, Launch, Outcome
from rank_probe.audit.report import audit
from rank_probe.version import __version__
from tests import nvmlstub
from tests.e2e.test_audit import FILES, NODES
from tests.exporter.running import ROOT

HERE = 4  # ranks and GPUs on each node


def gpus(node: int) -> tuple[GpuFacts, ...]:
    """Return the GPUs of *node*, the first two on one socket and the others on the other."""
    return tuple(
        GpuFacts(
            index=index,
            uuid=f"GPU-{node}-{index}",
            model="H100",
            cpus=tuple(range(16)) if index < 2 else tuple(range(16, 32)),
        )
        for index in range(HERE)
    )


def facts(rank: int, **changes: Any) -> Facts:
    """Return the facts of *rank* in a healthy launch, with *changes* applied."""
    node, local_rank = divmod(rank, HERE)
    first_cpu = local_rank * 8
    return dataclasses.replace(
        Facts(
            rank=rank,
            local_rank=local_rank,
            node=f"node-{node}",
            machine=f"machine-{node}",
            container="0::/job",
            compared={"NCCL_DEBUG": "WARN"},
            versions={"python": "3.11.7", "torch": "2.13.0", "nccl": "2.27.3", "driver": "580.1"},
            cpus=tuple(range(first_cpu, first_cpu + 8)),
            cpus_of_node=32,
            shared_memory_bytes=2**36,
            # Exactly the required amount is enough.
            shared_memory_free_bytes=HERE * 2**25,
            locked_bytes=2**30,
            device_files=HERE,
            gpus=gpus(node),
            interface_names=("eth0", "lo"),
            interfaces=(Interface("eth0", 9000, False, "the default route"),),
            ports=tuple(Port(f"mlx5_{i}", "1", "InfiniBand", True, 400.0) for i in range(2)),
        ),
        **changes,
    )


def launch(changes: dict[int, dict[str, Any]] | None = None, **of_launch: Any) -> Launch:
    """Return a healthy launch with *changes* of the facts, by rank, and of the launch itself."""
    changes = changes or {}
    return Launch(
        [facts(rank, **changes.get(rank, {})) for rank in range(2 * HERE)],
        **{"world_size": 2 * HERE, **of_launch},
    )


def settings(**variables: str) -> dict[str, Any]:
    """Return the change of a rank whose *variables* differ."""
    return {"settings": variables}


def troubles(audited: Launch) -> dict[str, Outcome]:
    """Return the outcomes that failed or warned, by check."""
    return {
        one.check: one
        for one in audit(audited)
        if one.status in (AuditStatus.FAIL, AuditStatus.WARN)
    }


Changes = dict[int, dict[str, Any]]
EVERY = range(8)
NODE_1 = range(4, 8)
BY_BUS = settings(CUDA_DEVICE_ORDER="PCI_BUS_ID")
WITHOUT_GPUS: dict[str, Any] = {"gpus": (), "device_files": 0}


def on(ranks: Any, **change: Any) -> Changes:
    """Return *change* on each of *ranks*."""
    return {rank: change for rank in ranks}


def ports(*rates: float) -> tuple[Port, ...]:
    """Return InfiniBand ports with these *rates* in Gb/s; 0 means that the port is down."""
    each = enumerate(rates)
    return tuple(Port(f"mlx5_{index}", "1", "InfiniBand", rate > 0, rate) for index, rate in each)


# Each key: the expected status, check and part of the reason. Each value: the changes, by rank.
PLANTS: dict[str, Changes] = {
    "fail device_per_rank: ranks 4-5 use the same GPU 1 (GPU-1-1) on node-1": on(
        [4, 5], **settings(CUDA_VISIBLE_DEVICES="GPU-1-1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    )
    | on([6, 7], **BY_BUS),
    "fail device_per_rank: rank 2 (node-0) sees no GPU: CUDA_VISIBLE_DEVICES=-1": on(
        [2], **settings(CUDA_VISIBLE_DEVICES="-1")
    ),
    "fail device_per_rank: rank 5 (node-1) sees no GPU: NVML fails: GPU is lost": on(
        [5], **WITHOUT_GPUS, nvml_problem="NVML fails: GPU is lost"
    ),
    "fail device_order: ranks 0-1 on node-0 see the same GPUs in different orders: "
    "0, 1, 2, 3, and 0, 1, 3, 2": on([1], **settings(CUDA_VISIBLE_DEVICES="0,1,3,2")),
    "fail device_order: differs on node-1: unset on ranks 4-5, 7, PCI_BUS_ID": on([6], **BY_BUS),
    "warn device_order: by number without CUDA_DEVICE_ORDER=PCI_BUS_ID on ranks 4-7 of node-1": on(
        NODE_1,
        **settings(CUDA_VISIBLE_DEVICES="0,1,2,3"),
        gpus=(*gpus(1)[:3], GpuFacts(3, "GPU-1-3", "A100", tuple(range(16, 32)))),
    ),
    "fail fabric: GPU 2 (GPU-1-2) on node-1 is not in the NVLink fabric: in progress": on(
        NODE_1,
        gpus=(*gpus(1)[:2], dataclasses.replace(gpus(1)[2], fabric="in progress"), gpus(1)[3]),
    ),
    "fail environment: NCCL_ALGO is Ring on rank 5; on the others it is unset": on(
        [5], compared={"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"}
    ),
    "fail environment: FI_AUTH_KEY is another value, which may be secret, on rank 0": on(
        [0], compared={"NCCL_DEBUG": "WARN", "FI_AUTH_KEY": "hidden 0123abcd"}
    ),
    "warn environment: PYTORCH_ALLOC_CONF is backend:native on rank 7": on(
        [7], compared={"NCCL_DEBUG": "WARN", "PYTORCH_ALLOC_CONF": "backend:native"}
    ),
    "fail versions: torch is 2.12.0 on rank 3; on the others it is 2.13.0": on(
        [3], versions={**facts(3).versions, "torch": "2.12.0"}
    ),
    "warn versions: driver differs: 580.1 on ranks 0-3, none on ranks 4-7": on(
        NODE_1, versions={**facts(0).versions, "driver": ""}
    ),
    "fail affinity: ranks 0-1 on node-0 are all bound to CPU 0": on([0, 1], cpus=(0,)),
    "warn affinity: rank 6 on node-1 may use 3 CPUs, other ranks": on([6], cpus=(16, 17, 18)),
    "fail numa: rank 3 (node-0) uses GPU 3 (GPU-0-3), but none of its 8 CPUs are near it": on(
        [3], cpus=tuple(range(8))
    ),
    "warn numa: only 25% of its 8 CPUs are near it": on([1], cpus=tuple(range(14, 22))),
    "fail shared_memory: /dev/shm on node-0 has 60 MiB free of 64 MiB; 4 ranks may want 128 M": on(
        range(4), shared_memory_bytes=64 * 2**20, shared_memory_free_bytes=60 * 2**20
    ),
    "fail locked_memory: ranks 1-2 may lock 64 KiB of memory (ulimit -l), and NCCL registers its "
    "buffers": on([1, 2], locked_bytes=65536),
    "fail locked_memory: rank 5 may lock 0 KiB of memory": on([5], locked_bytes=0),
    "fail socket_interface: NCCL_SOCKET_IFNAME=bond names no interface of node-0 (rank 0), which "
    "has eth0, lo": on(EVERY, **settings(NCCL_SOCKET_IFNAME="bond"), interfaces=()),
    "fail socket_interface: eth0 of node-1 is down": on(
        NODE_1, interfaces=(Interface("eth0", 9000, True, "the default route"),)
    ),
    "warn mtu: the MTU differs: 9000 on node-0; 1500 on node-1": on(
        NODE_1, interfaces=(Interface("eth0", 1500, False, "the default route"),)
    ),
    "fail infiniband: port 1 of mlx5_1 on node-1 is not active": on(NODE_1, ports=ports(400, 0)),
    "warn infiniband: port 1 of mlx5_1 on node-0 is not active": on(EVERY, ports=ports(400, 0)),
    "warn infiniband: slower than most InfiniBand ports, which have 400 Gb/s: mlx5_1 on node-1 "
    "(100 Gb/s)": on(NODE_1, ports=ports(400, 100)),
    "fail infiniband: NCCL_IB_HCA=mlx4 names no port of node-0": on(
        EVERY, **settings(NCCL_IB_HCA="mlx4")
    ),
}


@pytest.mark.parametrize("chosen", ["mlx5_0:1,mlx5_1:1", "=mlx5_0:1"])
def test_adapter_may_be_chosen_with_its_port(chosen: str) -> None:
    """The state of a port that NCCL_IB_HCA does not select is ignored."""
    both = (*ports(400, 400), Port("mlx5_0", "2", "InfiniBand", False, 0))
    assert not troubles(launch(on(EVERY, ports=both, **settings(NCCL_IB_HCA=chosen))))


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_misconfiguration_is_found(plant: str) -> None:
    """Only the matching check complains: it names the fault and where, and gives advice."""
    head, _, says = plant.partition(": ")
    ((check, found),) = troubles(launch(PLANTS[plant])).items()

    assert f"{found.status} {check}" == head
    assert says in found.findings[0].reason
    assert found.findings[0].advice


def test_every_check_has_a_plant_and_is_fine_without() -> None:
    """Every check has a misconfiguration that triggers it, and a clean launch triggers none."""
    missing = troubles(launch(missing=(3,)))["reported"]
    outcomes = audit(launch())
    planted = {plant.partition(": ")[0].split()[1] for plant in PLANTS}

    assert "rank 3 of 8 did not report" in missing.findings[0].reason
    assert {"reported", *planted} == {one.check for one in outcomes}
    (other,) = [one for one in outcomes if one.status is not AuditStatus.OK]
    assert (other.check, other.status) == ("socket_interface", AuditStatus.NOT_CHECKED)
    assert other.findings[0].reason == "neither NCCL_SOCKET_IFNAME nor GLOO_SOCKET_IFNAME is set"


@pytest.mark.parametrize(
    ("absent", "check", "says"),
    [
        (settings(NCCL_IB_DISABLE="1"), "infiniband", "NCCL_IB_DISABLE=1 turns InfiniBand off"),
        ({"ports": ()}, "infiniband", "there is no InfiniBand or RoCE port"),
        ({"ports": ()}, "locked_memory", "no InfiniBand port here: nothing locks memory"),
        ({"shared_memory_bytes": None}, "shared_memory", "there is no /dev/shm here"),
        ({"interfaces": ()}, "mtu", "no interface is known"),
        *(
            (WITHOUT_GPUS, check, "")
            for check in ("device_per_rank", "device_order", "numa", "fabric")
        ),
    ],
)
def test_what_is_not_there_is_not_checked(absent: dict[str, Any], check: str, says: str) -> None:
    """A check that does not apply is reported as not checked, such as a GPU check on CPUs."""
    without = launch(dict.fromkeys(EVERY, absent))
    (found,) = [one for one in audit(without) if one.check == check]

    assert troubles(without) == {}
    assert found.status is AuditStatus.NOT_CHECKED
    assert [one.reason[: len(says)] for one in found.findings] == [says]


def test_without_pynvml_devices_are_counted_by_their_files() -> None:
    """Checks that need NVML say why they did not run; device files still give the GPU count.

    Slurm names GPUs by number. Without NVML their models are unknown, so no warning follows.
    """
    blind = {"gpus": (), "nvml_problem": "pynvml is not installed"}
    outcomes = {one.check: one for one in audit(launch(on(EVERY, **blind, device_files=3)))}

    assert outcomes["numa"].findings[0].reason == "pynvml is not installed"
    one = audit(launch(on(NODE_1, **blind)))[0]
    assert f"{one.check}: {one.findings[0].reason}" == "fabric: node-1: pynvml is not installed"
    said = "rank {} (node-{node}), with local rank 3, sees 3 GPUs on node-{node}: too few"
    found = [one.reason for one in outcomes["device_per_rank"].findings]
    assert found == [said.format(3, node=0), said.format(7, node=1)]
    numbered = settings(CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert not troubles(launch(dict.fromkeys(EVERY, blind | numbered)))


@pytest.mark.parametrize(
    "visible",
    [
        ["0", "1", "2", "3"],
        ["0,1,2,3"] * 4,
        ["GPU-0-3", "GPU-0-2", "GPU-0-1", "GPU-0-0"],
        ["0,1", "2,3"],  # Disjoint lists: each rank owns every GPU of its list.
    ],
)
def test_usual_ways_to_give_gpus_are_fine(visible: list[str]) -> None:
    """Each rank may have one GPU or several of its own, or see all of them."""
    by_number = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    launched = [
        facts(rank, cpus=tuple(range(32)), **settings(CUDA_VISIBLE_DEVICES=each, **by_number))
        for rank, each in enumerate(visible)
    ]

    assert not troubles(Launch(launched, len(launched)))


NODE = NODES[0]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the launcher's variables, so that this process does not look like a rank."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA"):
        monkeypatch.delenv(name, raising=False)


def paths(folder: Path, **files: str) -> list[str]:
    """Write a healthy machine's files, overridden by *files*; return the options for it."""
    for name, text in {**FILES, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(node=NODE))
    return ["--path.procfs", f"{folder}/proc", "--path.sysfs", f"{folder}/sys"]


def test_what_is_found_is_told_with_what_to_do_and_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each check prints a line, failures first; a warning fails the audit only with --strict.

    `--json` prints one document; docs/audit.md lists all of its fields and checks.
    """
    assert command.run(paths(tmp_path)) == 0
    healthy = capsys.readouterr().out.splitlines()
    options = paths(tmp_path, **{"sys/class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec (1X NDR)"})
    assert (command.run(options), command.run([*options, "--strict"])) == (0, 1)
    assert "\nWARN         infiniband: slower than most" in capsys.readouterr().out
    options = paths(tmp_path, **{"sys/class/net/eth0/operstate": "down"})
    assert command.run(options) == 1
    lines = capsys.readouterr().out.splitlines()
    command.run([*options, "--json"])
    said = json.loads(capsys.readouterr().out)

    assert healthy[0] == f"audit: node {NODE}, for 1 rank, rankskew {__version__}"
    assert "OK           infiniband: 4 ports are active and equally fast" in healthy
    assert healthy[-1].startswith("ok: of 13 checks 0 failed, 0 warned, ")
    assert lines[1] == (
        f"FAIL         socket_interface: eth0 of {NODE} is down (chosen by the default route)"
    )
    assert lines[2].startswith("             do: ip link set eth0 up, or choose another with ")
    assert lines[-1].startswith("problem: of 13 checks 1 failed, 0 warned, ")
    check, page = said["checks"][0], (ROOT / "docs" / "audit.md").read_text()
    assert (said["ok"], said["ranks"], said["nodes"]) == (False, 0, [NODE])
    assert (check["check"], check["status"]) == ("socket_interface", "fail")
    names = [*said, *check, *check["findings"][0], *(one["check"] for one in said["checks"])]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("scenario", "status", "said"),
    [
        # An NVML call that never returns costs no more than the timeout.
        ("nvmlInitWithFlags * hang", 2, "the audit did not end within 1 s: it was reading this "),
        # A failed call does not end the audit. A GPU on an unknown socket still counts.
        ("nvmlInitWithFlags * 18", 0, "device_per_rank: NVML fails: RM has detected an NVML/RM "),
        ("nvmlDeviceGetUUID 3 15", 0, "not checked  device_per_rank: NVML fails: GPU is lost"),
        ("nvmlDeviceGetGpuFabricInfoV 2 =2", 1, " is not in the NVLink fabric: in progress"),
        ("nvmlDeviceGetGpuFabricInfoV * 13", 0, "fabric: no GPU has failed to join its "),
        ("nvmlDeviceGetCpuAffinity * 3", 0, "device_per_rank: 8 GPUs for 8 ranks"),
    ],
)
def test_driver_that_does_not_answer_is_told(
    library: Path, tmp_path: Path, scenario: str, status: int, said: str
) -> None:
    """The audit reports an NVML call that fails or hangs; the NVML stub plays the *scenario*."""
    (tmp_path / "scenario").write_text(f"{scenario}\n")
    timeout = "1s" if status == 2 else "30s"
    done = subprocess.run(
        [sys.executable, "-m", "rank_probe", "audit", "--timeout", timeout, *paths(tmp_path)],
        env=os.environ | nvmlstub.environment(library, 8, tmp_path / "scenario"),
        capture_output=True,
        text=True,
    )

    assert done.returncode == status, done.stdout
    assert said in done.stdout + done.stderr


WORLD = 3
# Longer than any of these tests may take; deliberate waits are shorter.
PATIENCE_SECONDS = 30.0


def meet(rank: int, port: int = 0, seconds: float = PATIENCE_SECONDS) -> Exchange:
    """Return a rank's exchange, set up as under srun or mpirun: rank 0 serves the store."""
    return Exchange(rank, WORLD, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}, seconds)


@pytest.mark.parametrize("absent", ["nobody", "one silent", "one of another release"])
def test_everybody_hears_what_rank_0_decides(absent: str) -> None:
    """Rank 0 gathers the facts posted within its timeout, and every rank receives its answer.

    Facts it cannot read count as missing. They are small: the store holds those of 16,384 ranks.
    """
    first = meet(0)
    port = first._store.underlying_store.port
    ranks = [1, 2] if absent == "nobody" else [2]

    def other(rank: int) -> int:
        exchange = meet(rank, port)
        exchange.post(facts(rank))
        return exchange.hear()

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(other, rank) for rank in ranks]
        first.post(facts(0))
        first._store.wait([f"facts/{rank}" for rank in ranks])
        if absent == "one of another release":
            later = dataclasses.asdict(facts(1)) | {"later": 1}
            first._store.set("facts/1", zlib.compress(json.dumps(later).encode()))
        gathered, missing = first.gather(PATIENCE_SECONDS if absent == "nobody" else 0.2)
        first.tell(1, others=len(ranks))

        assert gathered == [facts(rank) for rank in (0, *ranks)]
        assert missing == (() if absent == "nobody" else (1,))
        assert [one.result() for one in others] == [1] * len(ranks)
    assert len(pack(facts(5))) < 2000


def test_rank_0_that_does_not_answer_is_one_sentence() -> None:
    """A store that is absent or silent is reported in one sentence, without torch's frames."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswer, match=r"^nobody answers at 127\.0\.0\.1:\d+: "):
            meet(1, silent.getsockname()[1], 0.2)
    with pytest.raises(NoAnswer, match=r"^the store at 127\.0\.0\.1:\d+ does not answer: .*$"):
        meet(0, 0, 0.2).hear()
    for port, said in (("", "MASTER_PORT is not set, "), ("http", "MASTER_PORT=http is not a")):
        assert why_not({"MASTER_ADDR": "a", "MASTER_PORT": port}).startswith(said)
