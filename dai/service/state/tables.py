"""The tables of the state database, and the columns that those of an earlier version lack."""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData()
JOBS = sa.Table(
    "dai_jobs",
    METADATA,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("service", sa.String(200), nullable=False),
    sa.Column("resource", sa.String(200), nullable=False),
    sa.Column("session", sa.String(64)),
    sa.Column("owner", sa.String(400)),
    sa.Column("database_user", sa.String(400)),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    # MariaDB has types by their sizes
    sa.Column("request", sa.LargeBinary(1 << 30), nullable=False),
    sa.Column("blocksize", sa.Integer),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("started", sa.Double),
    sa.Column("ended", sa.Double),
    sa.Column("destruction", sa.Double, nullable=False, index=True),
    sa.Column("outputs", sa.JSON, nullable=False),
    sa.Column("activities", sa.JSON, nullable=False),
    sa.Column("error", sa.JSON),
    sa.Column("label", sa.String(200)),
    sa.Column("beginning", sa.String(200)),
)
sa.Index("ix_dai_jobs_service_phase", JOBS.c.service, JOBS.c.phase)  # each new job has those counted that go on
SERVICES = sa.Table(
    "dai_services",
    METADATA,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("token", sa.String(32), nullable=False),
    sa.Column("renewals", sa.Integer, nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("process", sa.Integer, nullable=False),
    sa.Column("machine", sa.String(100), nullable=False),
    sa.Column("began", sa.String(40), nullable=False),
)

TOKENS = sa.Table(
    "dai_tokens",
    METADATA,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("service", sa.String(200), nullable=False, index=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
    sa.Column("resources", sa.JSON, nullable=False),
    sa.Column("administrator", sa.Boolean, nullable=False),
    sa.Column("groups", sa.JSON, nullable=False),
)

SENT = sa.Table(
    "dai_sent",
    METADATA,
    sa.Column("service", sa.String(200), primary_key=True),
    sa.Column("caller", sa.String(400), primary_key=True),
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)


def add_columns(engine: sa.Engine) -> None:
    """Those that the table of an earlier version does not have."""
    there = {each["name"] for each in sa.inspect(engine).get_columns(JOBS.name)}
    for column in (each for each in JOBS.columns if each.nullable and each.name not in there):
        kind = column.type.compile(engine.dialect)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {JOBS.name} ADD COLUMN {column.name} {kind}")
