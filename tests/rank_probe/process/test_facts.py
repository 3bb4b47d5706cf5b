"""A rank tells what it knows of itself, and the user's labels, in few and short words."""

import json
import os
from pathlib import Path

import pytest

from rank_probe.process.facts import (
    MOST_LABELS,
    MOST_VALUE,
    labels,
    message,
    own_facts,
    read_facts,
    wrong_labels,
)

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"


def test_what_is_not_known_is_absent(tmp_path: Path) -> None:
    """On a host without a GPU, in no container: the node, and torch if it is imported."""
    known = own_facts({}, "", "", tmp_path / "none")

    assert known.keys() - {"torch"} == {"node"}
    assert known["node"] == os.uname().nodename


def test_driver_model_and_image_are_told(tmp_path: Path) -> None:
    driver = tmp_path / "version"
    driver.write_text(DRIVER)
    known = own_facts(
        {"APPTAINER_CONTAINER": "/images/train.sif"}, "NVIDIA H100", "generation 4 x16", driver
    )

    assert known.items() >= {
        ("GPU model", "NVIDIA H100"),
        ("PCIe", "generation 4 x16"),
        ("driver", "535.104.05"),
        ("image", "/images/train.sif"),
    }


def test_label_takes_the_place_of_what_is_found(tmp_path: Path) -> None:
    given = {"RANK_PROBE_LABELS": "node=rack7-3,image=v2", "SLURM_CONTAINER": "/v1"}
    known = own_facts(given, "", "", tmp_path / "none")

    assert (known["node"], known["image"]) == ("rack7-3", "v2")


@pytest.mark.parametrize(
    ("said", "known", "wrong"),
    [
        ("", {}, []),
        ("rack=r12, switch = s3,", {"rack": "r12", "switch": "s3"}, []),
        ("a=b=c", {"a": "b=c"}, []),
        ("rack", {}, ["rack="]),
        ("=r12", {}, ["=r12"]),
        ("rack=", {}, ["rack="]),
        ("r k=1,7=2,<b>=3,ok=4", {"ok": "4"}, ["r k=1", "7=2", "<b>=3"]),
        ("rack=1,rack=1,rack=2", {"rack": "1"}, ["rack=2"]),
        ("rack=a\nb", {}, ["rack=a\nb"]),
        ("rack=a\udcffb", {}, ["rack=a\udcffb"]),
        (f"rack={'x' * (MOST_VALUE + 1)}", {}, [f"rack={'x' * (MOST_VALUE + 1)}"]),
        (f"{'x' * 33}=1", {}, [f"{'x' * 33}=1"]),
    ],
)
def test_labels_that_cannot_be_told_are_left_out(
    said: str, known: dict[str, str], wrong: list[str]
) -> None:
    """The others are told; `rank-probe check` says which are not."""
    environment = {"RANK_PROBE_LABELS": said}

    assert labels(environment) == known
    assert wrong_labels(environment) == wrong


def test_labels_are_few() -> None:
    environment = {"RANK_PROBE_LABELS": ",".join(f"l{at}={at}" for at in range(MOST_LABELS + 2))}

    assert len(labels(environment)) == MOST_LABELS
    assert wrong_labels(environment) == ["l8=8", "l9=9"]


def test_facts_survive_their_way() -> None:
    known = {"node": "n1", "rack": "räck 機"}

    assert read_facts(message(known)) == known


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b"7",
        b"[" * 10_000,
        json.dumps({"node": "x" * 20_000}).encode(),
        json.dumps({"node": 7, "rack": None, "a\nb": "1", "b": "1\n2", "x" * 33: "1"}).encode(),
    ],
)
def test_nonsense_from_another_rank_is_no_fact(said: bytes) -> None:
    assert read_facts(said) == {}
