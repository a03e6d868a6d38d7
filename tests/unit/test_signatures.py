"""Every signature speaks for itself: example, counterexample, time, literals, reason and source; also a site's own."""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.config.signature_files import check_reason, load_signatures, own_files
from slurm_recovery.detect.pattern import LONGEST_LINE, problem_of
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.signature import Signature, SignatureError, parse_signatures
from slurm_recovery.records import Evidence, Role, Source

SIGNATURES = load_signatures()
EXAMPLES = Path(__file__).parents[2] / "conf" / "signatures.d"
CORPORA = Path(__file__).parents[1] / "corpus"
SOFTWARE_LINES = Path(__file__).with_name("software_lines.txt")

# Reasons that no line can prove by itself, and what says them instead.
WITHOUT_A_LINE = {
    "completed": "Slurm's state",
    "cancelled_by_admin": "Slurm's state names who cancelled",
    "teardown_hang": "a hang after the work was done: several lines",
}
MOST_SECONDS = 0.005  # of one pattern on the most hostile line of LONGEST_LINE characters that is made here

ENTRY = """
[[signature]]
id = 'a'
reason = 'cuda_oom'
role = 'root'
literals = ['out of memory']
pattern = 'GPU out of memory'
source = 'a program'
example = 'GPU out of memory'
counterexample = 'CPU out of memory'
"""

each = pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.id)


def seen(line: str, signature: Signature, signatures: tuple[Signature, ...] = SIGNATURES) -> list[Evidence]:
    source = signature.log or Source.JOB_LOG
    return [
        found
        for found in scan(line.encode(), signatures=signatures, source=source, path="log")
        if found.signature == signature.id
    ]


@each
def test_the_example_is_recognised(signature: Signature) -> None:
    (found,) = seen(signature.example, signature)
    assert (found.reason, found.role) == (signature.reason, signature.role)


@each
def test_the_counterexample_is_not(signature: Signature) -> None:
    assert not seen(signature.counterexample, signature)


def _software_lines() -> list[tuple[Source, str, str]]:
    rows = [row.split(" | ", 2) for row in SOFTWARE_LINES.read_text().splitlines() if not row.startswith("#")]
    return [(Source.KERNEL_LOG if kind == "K" else Source.JOB_LOG, name, line) for kind, name, line in rows]


@pytest.mark.parametrize(("source", "name", "line"), _software_lines(), ids=lambda value: str(value)[:60])
def test_other_wordings_are_recognised_too(source: Source, name: str, line: str) -> None:
    found = scan(line.encode(), signatures=SIGNATURES, source=source, path="log")
    ids = [evidence.signature for evidence in found if evidence.signature in {row.id for row in SIGNATURES}]
    assert ids == ([] if name == "-" else [name])
    assert line not in {row.example for row in SIGNATURES}


@pytest.mark.parametrize("name", [origin for origin, _ in own_files()])
def test_the_packages_files_pass_the_checks_of_a_sites(name: str) -> None:
    text = dict(own_files())[name]
    for signature in parse_signatures(text, name):
        check_reason(signature, name)


def _hostile(signature: Signature) -> list[str]:
    """Lines that begin again and again as a match would, and hold a literal, so that the pattern is tried."""
    example = signature.example
    bits = [*signature.literals, example, signature.counterexample, *(f"{text} " for text in signature.literals)]
    bits += [example[:end] for end in range(3, len(example), 9)]
    lines = [bit * (LONGEST_LINE // len(bit) + 1) for bit in bits]
    for end in range(4, len(example), 9):
        lines += [
            example[:end] + example[end - 1] * LONGEST_LINE,
            example[:end] + example[end - 4 : end] * LONGEST_LINE,
        ]
    return [line[: LONGEST_LINE - 200] + signature.literals[0] for line in lines]


def _seconds(pattern: re.Pattern[str], line: str, enough: float) -> float:
    """Processor time of one search: the best of a few, for the machine may be busy."""
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        pattern.search(line)
        best = min(best, time.process_time() - begin)
        if best < enough:
            break
    return best


@each
def test_no_line_makes_it_run_away(signature: Signature) -> None:
    pattern = re.compile(signature.pattern)
    slow = [line[:80] for line in _hostile(signature) if _seconds(pattern, line, MOST_SECONDS) >= MOST_SECONDS]
    assert not slow


def test_every_reason_is_in_the_table() -> None:
    assert {signature.reason for signature in SIGNATURES} <= {*REASONS, ""}


def test_every_reason_has_a_line_or_is_known_to_have_none() -> None:
    assert set(REASONS) - {signature.reason for signature in SIGNATURES} == set(WITHOUT_A_LINE)


def test_a_cause_has_a_reason() -> None:
    assert all(row.reason for row in SIGNATURES if row.role in (Role.ROOT, Role.CONDITIONAL))


def test_every_id_is_there_once() -> None:
    assert max(Counter(signature.id for signature in SIGNATURES).values()) == 1


@each
def test_every_literal_is_needed_and_there_once(signature: Signature) -> None:
    assert len(set(signature.literals)) == len(signature.literals)
    for literal in signature.literals:
        rest = [other for other in signature.literals if other != literal]
        assert problem_of(signature.pattern, rest) is not None, f"{literal!r} costs, and is in no match alone"


def test_no_literal_holds_another_of_its_own_signature() -> None:
    """A literal that holds a shorter one of the same signature is never looked for in vain."""
    for signature in SIGNATURES:
        for literal in signature.literals:
            assert not [other for other in signature.literals if other != literal and other in literal], signature.id


# -- sources -------------------------------------------------------------------------------------------------

# A file's name, a manual's name, or a class of errno and of exit status that the standards fix.
_FILE = re.compile(
    r"[\w/-]+\.(?:c|cc|cpp|h|hpp|py|go|rs|sh|txt|rst|in|cu|inl)\b|\b(?:raylet|gcs_server|lib\w+\.so)\b|pynvml\.py|/hip/|enroot\.in"
)
_VERSION = re.compile(r"\(v?\d[\w.+-]*|\(core_v|\(jax-v|\(commit [0-9a-f]{7}|\bv?\d+\.\d+|\d{4} to \d{4}|versions?\b")
_STANDARD = re.compile(
    r"errno|Xid [Cc]atalogue|[Mm]anual|[Gg]uide|EXIT CODES|message catalogue|status values"
    r"|public (?:issue|forum) threads|not seen in source|set -x|CR LF|names of their exceptions|codes"
)


def _documented(source: str) -> bool:
    return bool(_STANDARD.search(source) or (_FILE.search(source) and _VERSION.search(source)))


@cache
def _cases_of() -> dict[str, set[str]]:
    """For each signature the cases of the corpora in which it speaks."""
    found: dict[str, set[str]] = {}
    for log in sorted([*CORPORA.glob("**/job.log"), *CORPORA.glob("**/dmesg.*.log")]):
        source = Source.JOB_LOG if log.name == "job.log" else Source.KERNEL_LOG
        for evidence in scan(log.read_bytes(), signatures=SIGNATURES, source=source, path=log.name):
            found.setdefault(evidence.signature, set()).add(log.parent.name)
    return found


def test_what_only_one_case_uses_is_documented_with_file_and_version() -> None:
    """No rule may be made for a case: what one case alone needs is printed by software that can be named."""
    cases = _cases_of()
    alone = [row for row in SIGNATURES if len(cases.get(row.id, ())) == 1]
    assert alone, "the corpora use no signature in one case alone, so this proves nothing"
    assert not [(row.id, row.source) for row in alone if not _documented(row.source)]


def test_most_signatures_are_for_more_than_the_corpora() -> None:
    unused = [row for row in SIGNATURES if row.id not in _cases_of()]
    assert len(unused) >= 20
    assert not [(row.id, row.source) for row in unused if not _documented(row.source)]


@pytest.mark.parametrize(
    "source", ["a program", "PyTorch torch/cuda/__init__.py", "Slurm 22.05", "somebody's log", "versions unknown"]
)
def test_a_source_without_file_and_version_does_not_count(source: str) -> None:
    assert not _documented(source)


# -- a site's own files --------------------------------------------------------------------------------------


def test_a_site_adds_and_replaces(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(ENTRY.replace("'a'", "'xid_79'") + ENTRY)
    rows = {row.id: row for row in load_signatures([tmp_path])}
    assert rows["xid_79"].reason == "cuda_oom"
    assert len(rows) == len(SIGNATURES) + 1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.example")), ids=lambda path: path.name)
def test_a_shipped_example_works_once_it_is_renamed(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / path.name.removesuffix(".example"))
    own = parse_signatures(path.read_text(), path.name)
    assert own
    signatures = load_signatures([tmp_path])
    for signature in own:
        assert seen(signature.example, signature, signatures)
        assert not seen(signature.counterexample, signature, signatures)


def test_there_are_examples_and_their_format_is_told() -> None:
    assert len(list(EXAMPLES.glob("*.toml.example"))) >= 3
    told = (EXAMPLES / "README.md").read_text()
    assert not [field for field in Signature.model_fields if f"`{field}`" not in told]


def test_an_example_is_not_read_before_it_is_renamed() -> None:
    assert len(load_signatures([EXAMPLES])) == len(SIGNATURES)


def test_captures_are_what_the_pattern_names() -> None:
    rows = {row.id: row for row in SIGNATURES}
    assert rows["megatron_transient"].captures == ("rank", "node", "local_rank")
    assert rows["srun_node_failure"].captures == ("node",)
    assert rows["xid_79"].captures == ()


def test_one_file_may_not_name_an_id_twice(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(ENTRY + ENTRY)
    with pytest.raises(SignatureError, match=r"site.toml: a: named twice in one file \("):
        load_signatures([tmp_path])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ENTRY.replace("cuda_oom", "cuda_oem"), r"a: reason: unknown: 'cuda_oem' \(cuda_oom\? All are listed"),
        (ENTRY.replace("cuda_oom", "xyzzy"), r"a: reason: unknown: 'xyzzy' \(see srecover explain --rules\)"),
        (ENTRY.replace("'cuda_oom'", "''"), r"a: reason: empty, and yet role 'root' \(name a reason"),
    ],
)
def test_a_reason_must_be_in_the_table(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(SignatureError, match=message):
        load_signatures([tmp_path])


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="not a folder"):
        load_signatures([tmp_path / "none"])


def test_a_file_that_is_not_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SignatureError, match="unreadable"):
        load_signatures([tmp_path])


def with_pattern(pattern: str) -> str:
    return ENTRY.replace("'GPU out of memory'\nsource", f"'''{pattern}'''\nsource")


BROKEN = [
    ("signature = 1", "signature: not a list of tables"),
    ("[other]\na = 1", "other: unknown table"),
    ("[[signature", "file: not TOML"),
    (ENTRY.replace("id = 'a'", ""), "entry 1: id: Field required"),
    (ENTRY + "colour = 'red'", "a: colour: Extra inputs"),
    (ENTRY.replace("'root'", "'cause'"), "a: role: Input should be"),
    (with_pattern("GPU (out"), "a: pattern: missing ), unterminated subpattern"),
    (with_pattern("(?:GPU +)+out of memory"), "a: pattern: up to "),
    (with_pattern("(?:G+)+PU out of memory"), "a: pattern: a repeat inside a repeat"),
    (with_pattern("(?P<gpu>GPU) out of memory"), "a: pattern: a group named gpu (only rank, node, local_rank"),
    (with_pattern("GPU out of"), "a: literals: a match need not hold one: 'GPU out of'"),
    (with_pattern("GPU out of memory|GPU full"), "a: literals: a match need not hold one: 'GPU full'"),
    (with_pattern("GPU out of memory" + "x?" * 2100), "a: pattern: longer than 4000 characters"),
    (ENTRY.replace("['out of memory']", "['out']"), "a: literals: too short"),
    (ENTRY.replace("['out of memory']", "[]"), "a: literals: too short or none"),
    (ENTRY.replace("['out of memory']", "['elsewhere']"), "a: literals: a match need not hold one"),
    (ENTRY.replace("example = 'GPU out of memory'", "example = 'GPU'"), "a: example: not matched"),
    (ENTRY.replace("'CPU out of memory'", "'GPU out of memory'"), "a: counterexample: matched"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_a_bad_entry_is_one_line_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(SignatureError) as raised:
        parse_signatures(text, "site.toml")
    said = str(raised.value)
    assert said.startswith(f"site.toml: {message}")
    assert said.endswith(")")
    assert "\n" not in said
