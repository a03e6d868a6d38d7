"""How long nodes were at work without a failure, summed up by partition and day.

Adds one table and touches no other.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MARIADB = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    op.create_table(
        "exposure",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("partition", sa.String(255), primary_key=True),
        sa.Column("day", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("node_seconds", sa.Double(), nullable=False),
        if_not_exists=True,
        **MARIADB,
    )


def downgrade() -> None:
    op.drop_table("exposure")
