"""The worker: takes the spool's lock, runs turns until nothing is left to do soon, and ends.

Started by a hook, in a session of its own. The kernel ends it after WorkerTimeout by SIGALRM's default
action, which works even where a library call never returns. `srecover sweep` drives the same turns.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential, wait_random

from slurm_recovery.config.confile import ConfigError
from slurm_recovery.config.load import load
from slurm_recovery.config.settings import Config, Settings
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.consult import Consultant
from slurm_recovery.detect.signature import SignatureError
from slurm_recovery.holds import overdue, release_holds
from slurm_recovery.hooks.spool import Spool
from slurm_recovery.observe import Observer
from slurm_recovery.recover import Recovery
from slurm_recovery.slurm.errors import SlurmError, SlurmUnavailable
from slurm_recovery.slurm.port import Slurm
from slurm_recovery.slurm.select import open_slurm
from slurm_recovery.store.errors import StoreError
from slurm_recovery.store.store import Store

log = structlog.get_logger(__name__)

LIFE = 3600  # seconds after which the kernel ends any worker, however often it went on
MAX_LOG_BYTES = 8 << 20
SLURM_PATIENCE = 60.0  # seconds for which an unreachable slurmctld is asked again; then sweep goes on
PURGE_EVERY = 86400.0

Problem = (ConfigError, SignatureError, StoreError, SlurmError, OSError)


@dataclass(frozen=True)
class Ports:
    """How the worker gets at the outside: its adapters, each made when it is needed."""

    slurm: Callable[[Settings], Slurm] = open_slurm
    store: Callable[[str], Store] = Store.open
    spool: Callable[[Path], Spool] = Spool


def open_recovery(config: Config, slurm: Slurm, store: Store, spool: Spool) -> Recovery:
    """The loop over these ports. Raises SlurmUnavailable where slurmctld does not say its cluster's name."""
    folders = [config.settings.signature_dir] if config.settings.signature_dir else []
    consultant = Consultant(config.settings, time.monotonic)
    return Recovery(
        config=config,
        cluster=slurm.config()["clustername"],
        slurm=slurm,
        store=store,
        spool=spool,
        observer=Observer(config.settings, load_signatures(folders), consultant.consult),
        now=time.time,
    )


def drive(recovery: Recovery, deadline: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Turns, until none is worth it or the monotonic `deadline` is over. A new event ends a pause early."""
    patient = Retrying(
        retry=retry_if_exception_type(SlurmUnavailable),
        wait=wait_exponential(multiplier=0.2, max=5) + wait_random(0, 0.2),
        stop=stop_after_delay(SLURM_PATIENCE),
        reraise=True,
    )
    while True:
        pause = patient(recovery.turn)
        if pause is None or time.monotonic() + pause > deadline:
            return
        until = time.monotonic() + pause
        while time.monotonic() < until and not recovery.spool.waiting():
            sleep(0.02)


def work(config: Config, spool: Spool, deadline: float, ports: Ports = Ports(), *, watch: bool = False) -> None:
    """Open everything, drive the turns; `watch`: look at the nodes' health reports, too.

    Without a usable store, release what we hold, and let every hook go.
    """
    slurm = ports.slurm(config.settings)
    try:
        with ports.store(config.settings.url) as store:
            recovery = open_recovery(config, slurm, store, spool)
            drive(recovery, deadline)
            if watch:
                recovery.watch()
            store.purge(time.time() - config.settings.retain_time)
    except StoreError:
        let_go(spool)
        release_holds(slurm, spool, overdue(spool, time.time(), config.settings.hold_timeout))
        raise


def let_go(spool: Spool) -> None:
    """No hook shall wait for what we cannot do now; its event stays for the next sweep."""
    for event in spool.events():
        spool.defer(event)


def main(argv: list[str] | None = None, ports: Ports = Ports()) -> int:
    """The worker's process. Exit status 0, or 1 with one line in worker.log."""
    parser = argparse.ArgumentParser(prog="slurm_recovery.worker", description=__doc__)
    parser.add_argument("--conf", type=Path, required=True, help="recovery.conf")
    parser.add_argument("--state", type=Path, required=True, help="StateDir, known even where recovery.conf is broken")
    parser.add_argument("--lock-fd", type=int, required=True, help="the spool's lock, inherited from the hook")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # slurmctld blocks SIGALRM and SIGTERM in what it starts
    signal.alarm(LIFE)
    configure_log()
    spool = ports.spool(arguments.state)
    inherited: int | None = arguments.lock_fd
    while True:
        with spool.lock(inherited=inherited) as got:
            if not got:
                return 0
            _rotate(arguments.state / "worker.log")
            failed = _once(arguments.conf, spool, ports)
        # A hook that found the lock taken relies on us: look again after letting it go.
        if failed or not spool.waiting():
            return int(failed)
        inherited = None


def _once(conf: Path, spool: Spool, ports: Ports) -> bool:
    try:
        config = load(conf)
        signal.alarm(min(int(config.settings.worker_timeout), signal.alarm(0) or LIFE))
        work(config, spool, time.monotonic() + config.settings.worker_timeout - 10, ports)
    except Problem as error:
        log.error("worker failed", error=str(error))
        let_go(spool)
        return True
    return False


def configure_log() -> None:
    """One line an event on standard error: time, level, what, key=value."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # as it is when something is said
        cache_logger_on_first_use=False,
    )


def _rotate(path: Path) -> None:
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))


if __name__ == "__main__":
    sys.exit(main())
