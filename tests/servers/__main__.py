"""``python -m tests.servers [PRODUCT …] [--seconds N]``: servers to try things on."""

import argparse
import signal
import time
from collections.abc import Callable

from tests.servers import Server
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer


def main() -> None:
    servers: dict[str, Callable[[], Server]] = {"postgresql": PostgresServer, "mariadb": MariaServer}
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description="Run throw-away database servers.")
    parser.add_argument("products", nargs="*", choices=[*servers, []], help="which ones; all when none is named")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this time (default 3600)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: exit(0))
    running: list[Server] = []
    try:
        for product in arguments.products or servers:
            running.append(servers[product]())
            running[-1].start()
            print(running[-1].url, flush=True)
        time.sleep(arguments.seconds)
    except KeyboardInterrupt:
        print("stopping")
    finally:
        for server in running:
            server.close()


if __name__ == "__main__":
    main()
