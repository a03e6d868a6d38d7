"""Host lists: there and back, bounded, and nothing but HostlistError for what is none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_recovery.hostlist import MAX_HOSTS, HostlistError, expand, fold

NAMES = st.lists(st.from_regex(r"[a-z][a-z-]{0,5}[0-9]{1,4}(\.[a-z]{1,3})?", fullmatch=True), max_size=40)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1,3],login", ["login", "n1", "n3"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu-a.example.org", ["gpu-a.example.org"]),
        (" n1 ", ["n1"]),
        ("n1,n1", ["n1"]),
    ],
)
def test_a_list_is_expanded(text: str, names: list[str]) -> None:
    assert sorted(expand(text)) == names


@pytest.mark.parametrize("text", ["", " ", "(null)", "None", "None assigned", "N/A"])
def test_words_for_no_host(text: str) -> None:
    assert expand(text) == ()


@pytest.mark.parametrize(
    "text",
    ["n[1-", "n[1-2", "n1;n2", "@group", "n1 n2", "$(touch x)", "n[1-2]&n1", "n1!n2", "n1^n2", "../n", "n\0", "n[a-b]"],
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[1-99999999]",
        "n[0-999999999999999999999]",
        "n[1-1000][1-1000]",
        "n[1-300],m[1-300][1-300]",
        ",".join(["n[1-65000]", "m[1-65000]"]),
        "n[1-40000,1-40000]",
        "n" * 1_000_001,
    ],
)
def test_a_range_bomb_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(HostlistError):
        expand(text)
    assert time.process_time() - began < 3


def test_the_greatest_cluster_fits() -> None:
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


@given(NAMES)
def test_there_and_back(names: list[str]) -> None:
    assert sorted(expand(fold(names))) == sorted(set(names))


@given(st.text(max_size=60) | st.text(alphabet="n0123456789[],-", max_size=30))
def test_any_text_gives_names_or_the_one_error(text: str) -> None:
    try:
        names = expand(text)
    except HostlistError:
        return
    assert len(names) <= MAX_HOSTS
    assert all(isinstance(name, str) for name in names)


@pytest.mark.parametrize("name", ["", "n1,n2", "n[1-2]", "-n", "@all", "n1 AdminComment=x", "n;1", "n\n"])
def test_only_names_are_folded(name: str) -> None:
    with pytest.raises(HostlistError):
        fold(["n1", name])


def test_folding_sorts_and_drops_doubles() -> None:
    assert fold(["n2", "n1", "n2", "n10"]) == "n[1-2,10]"
    assert fold([]) == ""


@pytest.mark.parametrize(
    "text",
    [
        "n[-9000000-1]",
        "n44444[7-49999999]",
        "[1,5]n9,[1-9999]n[1-9999]",
        "n[1-999999999]",
        "n[1-300][1-300]",
        "n[0-9]" * 9,
        ",".join(["n[1-60000]"] * 9),
        "n[" + "1," * 100_000 + "1]" + "x[1-2]" * 20,
    ],
)
def test_a_bomb_costs_next_to_nothing(text: str) -> None:
    began = time.process_time()
    with pytest.raises(HostlistError):
        expand(text)
    assert time.process_time() - began < 3


def test_a_long_list_is_read_in_linear_time() -> None:
    names = [f"n{number}" for number in range(60_000)]
    began = time.process_time()
    assert expand(",".join(names)) == tuple(names)
    assert time.process_time() - began < 5


def test_brackets_beside_digits_and_several_brackets() -> None:
    assert expand("n4[07-09]") == ("n407", "n408", "n409")
    assert expand("r[1-2]n[1,3]-ib") == ("r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib")
    assert expand("n[098-101]") == ("n098", "n099", "n100", "n101")
    assert expand("n[1-2],n2,m") == ("n1", "n2", "m")
