"""Asks a site's own attributor: an executable, or an HTTP address. Bytes in, bytes out.

Owns how it is asked and for how long: the question is written, at most MOST_ANSWER bytes come back, and after
`timeout` seconds whatever is left of it is killed. It runs as we do, without a shell, with an environment and a
process group of its own. What cannot be asked is a Gap of one line. What an answer means is known in
attribute/answer.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import stat
import subprocess
import time

from slurm_recovery.evidence.as_user import Child, Refused, TooLate, Write
from slurm_recovery.records import Gap, Source

MOST_ANSWER = 1 << 20
MOST_ERROR = 4096
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/"}
_LATE = "no answer within {:g} s (AttributorTimeout)"
_HUGE = f"answered more than {MOST_ANSWER} bytes"


def name_of(address: str) -> str:
    """How the attributor is called on record: the program's name, or host and port without what may be secret."""
    if not _is_http(address):
        return os.path.basename(address)
    return re.split(r"[/?#]", address.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]


def ask(address: str, question: bytes, *, timeout: float) -> bytes | Gap:
    """What the attributor at this address answers to the question, a JSON text."""
    deadline = time.monotonic() + timeout
    try:
        return _post(address, question, deadline) if _is_http(address) else _run(address, question, deadline)
    except TooLate:
        return _gap(address, _LATE.format(timeout))
    except (Refused, OSError, ValueError) as error:
        return _gap(address, str(error) or type(error).__name__)


def unusable(address: str) -> str:
    """Why a program cannot be asked; "" where nothing is known against it. It is not run, and no address is called."""
    try:
        if not _is_http(address):
            _trusted(address)
    except (Refused, OSError, ValueError) as error:
        return str(error)
    return ""


def _is_http(address: str) -> bool:
    return address.lower().startswith(("http://", "https://"))


def _gap(address: str, why: str) -> Gap:
    shown = "".join(char if char.isprintable() else " " for char in why[:500])
    return Gap(source=Source.ATTRIBUTOR, what=name_of(address), why=shown.strip())


# An executable.


def _run(path: str, question: bytes, deadline: float) -> bytes:
    with subprocess.Popen(
        [_trusted(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=ENVIRONMENT,
        start_new_session=True,
    ) as process:
        try:
            answer, said = _converse(process, question, deadline)
            code = _ended(process, deadline)
        finally:
            # Also what it left behind in its process group. Before the block ends, which waits for it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise Refused(f"{how}: {last}" if last else how)
    return answer


def _ended(process: subprocess.Popen[bytes], deadline: float) -> int:
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TooLate from None


def _trusted(path: str) -> str:
    """The real path, if nobody but root and we could have written what is there."""
    real = os.path.realpath(path, strict=True)
    if not os.path.isabs(path) or not stat.S_ISREG(os.stat(real).st_mode):
        raise Refused("not a regular file by an absolute path")
    place = real
    while True:
        status = os.stat(place)
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or (others and not sticky):
            raise Refused(f"{place} can be written by others than its owner; chown root, chmod go-w")
        if place == "/":
            break
        place = os.path.dirname(place)
    if not os.access(real, os.X_OK):
        raise Refused(f"{real} may not be executed; chmod 755")
    return real


def _converse(process: subprocess.Popen[bytes], question: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Writes the question while it reads, so that neither side waits for the other; until the answer is closed."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    waiting, answer, said, talking = memoryview(question), bytearray(), bytearray(), True
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdin, selectors.EVENT_WRITE)
        ready.register(process.stdout, selectors.EVENT_READ, answer)
        ready.register(process.stderr, selectors.EVENT_READ, said)
        while talking:
            events = ready.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                raise TooLate
            for key, _ in events:
                if key.fileobj is process.stdin:
                    waiting = _write(key.fd, waiting)
                    if not waiting:
                        ready.unregister(process.stdin)
                        process.stdin.close()
                    continue
                block = os.read(key.fd, 1 << 16)
                key.data.extend(block)
                if not block:
                    ready.unregister(key.fileobj)
                    talking = talking and key.fileobj is not process.stdout
            if len(answer) > MOST_ANSWER:
                raise Refused(_HUGE)
            del said[:-MOST_ERROR]
    return bytes(answer), bytes(said)


def _write(descriptor: int, waiting: memoryview) -> memoryview:
    """What is left to write; nothing where nobody reads it: it may answer without having read all."""
    try:
        return waiting[os.write(descriptor, waiting[: 1 << 16]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


# An HTTP address.


def _post(address: str, question: bytes, deadline: float) -> bytes:
    """In a child: a time limit of urllib holds for each read, and name resolution has none."""

    def work(write: Write) -> None:
        write(b"+" + _exchange(address, question, deadline))

    with Child(work, os.geteuid(), deadline) as child:
        answer = child.read(MOST_ANSWER + 2)
    if not answer.startswith(b"+"):
        raise Refused(answer[1:500].decode(errors="replace") or "the connection's process died")
    return answer[1:]


def _exchange(address: str, question: bytes, deadline: float) -> bytes:
    from http.client import HTTPException  # 50 ms that only this needs
    from urllib import error, request

    # No proxy of our environment, no redirect, no other scheme: what is not added here is not done.
    opener = request.OpenerDirector()
    for handler in (
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPErrorProcessor(),
        request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "slurm_recovery"}
    post = request.Request(address, data=question, headers=headers, method="POST")
    try:
        # Longer than we are waited for: the end is the deadline's, not that of one read.
        with opener.open(post, timeout=max(0.0, deadline - time.monotonic()) + 1) as response:
            if response.status == 204:  # nothing to say
                return b""
            answer: bytes = response.read(MOST_ANSWER + 1)
            missing = response.length  # of Content-Length; None where it was not told
    except error.HTTPError as refusal:
        raise Refused(f"HTTP {refusal.code}{_where(refusal.headers.get('Location'))}") from None
    except error.URLError as failure:
        raise Refused(str(failure.reason)) from None
    except HTTPException as failure:
        raise Refused(f"not HTTP: {type(failure).__name__}") from None
    if len(answer) > MOST_ANSWER:
        raise Refused(_HUGE)
    if missing:
        raise Refused(f"cut short, {missing} bytes are missing")
    return answer


def _where(location: str | None) -> str:
    return f" to {location[:200]}: redirects are not followed" if location else ""
