"""One module for each version of the tables, with what leads to it from the one before. `alembic` runs them in order."""
