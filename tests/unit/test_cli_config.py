"""srecover config, and where recovery.conf is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_recovery.cli.common import Context
from slurm_recovery.cli.config_ import without_password
from slurm_recovery.config.load import load
from slurm_recovery.config.sample import defaults, sample
from slurm_recovery.config.settings import Settings
from tests.unit.cli_site import Site, run

REPOSITORY = Path(__file__).parents[2]


def test_every_value_is_shown_with_its_origin(tmp_path: Path) -> None:
    site = Site(tmp_path, "MaxRequeues=5\nPartitionName=train Mode=act\nReason=nccl_timeout Action=stop\n")
    lines = site.run("config").lines
    assert site.run("config", "-h").lines == lines[1:]
    assert {line.split()[0] for line in lines} >= set(defaults())
    assert lines[0].split() == ["KEY", "VALUE", "FROM"]
    assert ["MaxRequeues", "5", f"{site.conf}:2"] in [line.split() for line in lines]
    assert ["Mode", "observe", "default"] in [line.split() for line in lines]
    assert [line.split() for line in lines[-2:]] == [
        ["PartitionName=train", "Mode", "act", f"{site.conf}:3"],
        ["Reason=nccl_timeout", "Action", "stop", f"{site.conf}:4"],
    ]


def test_config_as_json_says_whence_a_partition_has_each_value(tmp_path: Path) -> None:
    site = Site(tmp_path, "MaxRequeues=5\nPartitionName=train Mode=act\n")
    found = json.loads(site.run("config", "--json").out)
    assert found["settings"]["MaxRequeues"] == {"value": "5", "from": f"{site.conf}:2"}
    assert found["settings"]["Mode"] == {"value": "observe", "from": "default"}
    train = found["partitions"]["train"]
    assert (train["Mode"]["from"], train["MaxRequeues"]["from"]) == (f"{site.conf}:3", f"{site.conf}:2")
    assert found["policy"] == load(site.conf).digest


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("Mod=act\n", "recovery.conf:2: unknown key Mod; hint: did you mean Mode?"),
        ("MaxRequeues=-1\n", "recovery.conf:2: MaxRequeues=-1: "),
        ("Reason=nccl_timout Action=stop\n", "did you mean nccl_timeout?"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_place_and_a_hint(tmp_path: Path, conf: str, said: str) -> None:
    answer = Site(tmp_path, conf).run("config")
    assert (answer.status, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert said in answer.err


def test_the_sample_is_the_one_in_the_repository_and_is_a_good_file(tmp_path: Path) -> None:
    printed = run("config", "--sample").out
    assert printed == sample() == (REPOSITORY / "conf/recovery.conf.example").read_text()
    path = tmp_path / "recovery.conf"
    path.write_text(printed)
    assert load(path).settings == Settings()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql+pymysql://ada:secret@db/recovery", "mysql+pymysql://ada:***@db/recovery"),
        ("mysql+pymysql://ada:se@cr:et@db/recovery", "mysql+pymysql://ada:***@db/recovery"),
        ("mysql+pymysql://db/recovery?password=secret", "mysql+pymysql://db/recovery?..."),
        ("sqlite:////var/lib/recovery.db", "sqlite:////var/lib/recovery.db"),
        ("", ""),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


# -- which file ----------------------------------------------------------------------------------


def test_the_option_goes_before_the_variable_and_that_before_the_neighbour_of_slurm_conf(tmp_path: Path) -> None:
    sites = {}
    for name in ("option", "variable", "neighbour"):
        (tmp_path / name).mkdir()
        sites[name] = Site(tmp_path / name)
    slurm_conf = {"SLURM_CONF": str(tmp_path / "neighbour/slurm.conf")}
    variable = {"SRECOVER_CONF": str(sites["variable"].conf), **slurm_conf}
    assert _file("--conf", str(sites["option"].conf), env=variable) == str(sites["option"].conf)
    assert _file(env=variable) == str(sites["variable"].conf)
    assert _file(env=slurm_conf) == str(sites["neighbour"].conf)


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"SLURM_CONF": "/opt/slurm/etc/slurm.conf"}, "/opt/slurm/etc/recovery.conf"),
        ({"SLURM_CONF": ""}, "/etc/slurm/recovery.conf"),
        ({}, "/etc/slurm/recovery.conf"),
    ],
)
def test_the_place_beside_slurm_conf_is_the_place_before_the_file_is_there(
    environment: dict[str, str], path: str
) -> None:
    assert Context.found(None, environment) == Context(Path(path), given=False)


def test_the_sample_is_not_json() -> None:
    answer = run("config", "--sample", "--json")
    assert (answer.status, answer.out) == (2, "")
    assert "give either --sample or --json" in answer.err


def _file(*words: str, env: dict[str, str]) -> object:
    return json.loads(run(*words, "config", "--json", env=env).out)["file"]


def test_a_file_that_was_named_and_is_not_there_is_one_line(tmp_path: Path) -> None:
    answer = run("config", env={"SRECOVER_CONF": str(tmp_path / "none")})
    assert answer.status == 1
    assert (
        answer.err
        == f"srecover: error: {tmp_path}/none: No such file or directory; hint: `srecover setup` writes a sample\n"
    )
