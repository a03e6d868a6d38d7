"""The ledger of nodes: attempts as their nodes' suspicion counts them, and nodes' histories.

Adds two tables and touches no other. Each statement may find its work done, as in 0001.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGTEXT

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LONG = sa.Text().with_variant(LONGTEXT(), "mysql", "mariadb")
MARIADB = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}

INDEXES = [
    ("ix_run_end", "run", ["cluster", "end_time"]),
    ("ix_run_old", "run", ["end_time"]),
    ("ix_node_event_node", "node_event", ["cluster", "node", "time"]),
    ("ix_node_event_action", "node_event", ["cluster", "action", "time"]),
    ("ix_node_event_old", "node_event", ["time"]),
]


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", KEY, primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("start_time", sa.BigInteger(), nullable=False),
        sa.Column("end_time", sa.Double(), nullable=False),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("user", sa.String(128), nullable=False),
        sa.Column("partition", sa.String(255), nullable=False),
        sa.Column("good", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("nodes", LONG, nullable=False),
        sa.Column("blamed", LONG, nullable=False),
        sa.UniqueConstraint("cluster", "job_id", "restart_count", "start_time", name="uq_run_attempt"),
        if_not_exists=True,
        **MARIADB,
    )
    op.create_table(
        "node_event",
        sa.Column("id", KEY, primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("result", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("user", sa.String(128), nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("incident_id", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(64), nullable=False),
        sa.Column("detail", LONG, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
        **MARIADB,
    )
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns, if_not_exists=True)


def downgrade() -> None:
    op.drop_table("node_event")
    op.drop_table("run")
