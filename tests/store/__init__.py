"""Tests of the store: one contract on SQLite and on a real MariaDB, and everything that can go wrong on each."""
