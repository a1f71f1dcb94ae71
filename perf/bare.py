"""The peer of the latency benchmark: the least FastAPI program that answers a query from a pool of psycopg connections.

``python -m perf.bare DSN PORT``
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from psycopg_pool import ConnectionPool
from pydantic import BaseModel


class Query(BaseModel):
    sql: str


def application(dsn: str) -> FastAPI:
    app = FastAPI()
    pool = ConnectionPool(dsn, min_size=4, max_size=16, open=True)

    @app.post("/query")
    def query(body: Query) -> list[tuple[Any, ...]]:
        with pool.connection() as connection:
            return connection.execute(body.sql).fetchall()

    return app


if __name__ == "__main__":
    uvicorn.run(
        application(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False
    )
