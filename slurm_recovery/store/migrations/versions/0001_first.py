"""Incidents and their steps.

A migration never imports the tables of the release: those go on changing. Each statement may find its work
done, because MariaDB keeps what was created before an interruption.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGTEXT

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LONG = sa.Text().with_variant(LONGTEXT(), "mysql", "mariadb")
MARIADB = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}

INDEXES = [
    ("ix_incident_label", "incident", ["cluster", "label"]),
    ("ix_incident_stage", "incident", ["stage", "cluster"]),
    ("ix_incident_user", "incident", ["user"]),
    ("ix_incident_partition", "incident", ["partition"]),
    ("ix_incident_reason", "incident", ["reason"]),
    ("ix_incident_verdict", "incident", ["verdict"]),
    ("ix_incident_created", "incident", ["created"]),
    ("ix_incident_updated", "incident", ["updated"]),
    ("ix_step_incident", "step", ["incident_id"]),
    ("ix_step_action", "step", ["action", "time"]),
]


def upgrade() -> None:
    op.create_table(
        "incident",
        sa.Column("id", KEY, primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("start_time", sa.BigInteger(), nullable=False),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("user", sa.String(128), nullable=False),
        sa.Column("partition", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("updated", sa.Double(), nullable=False),
        sa.Column("record", LONG, nullable=False),
        sa.UniqueConstraint("cluster", "job_id", "restart_count", "start_time", name="uq_incident_attempt"),
        sqlite_autoincrement=True,
        if_not_exists=True,
        **MARIADB,
    )
    op.create_table(
        "step",
        sa.Column("id", KEY, primary_key=True, autoincrement=True),
        sa.Column("incident_id", KEY, sa.ForeignKey("incident.id", name="fk_step_incident"), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("result", sa.String(32), nullable=False),
        sa.Column("detail", LONG, nullable=False),
        sqlite_autoincrement=True,
        if_not_exists=True,
        **MARIADB,
    )
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns, if_not_exists=True)


def downgrade() -> None:
    op.drop_table("step")
    op.drop_table("incident")
