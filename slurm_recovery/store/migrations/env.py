"""Run by alembic: the migrations, on the connection and in the transaction of the caller."""

from alembic import context

from slurm_recovery.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
