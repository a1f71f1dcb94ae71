"""Reading one item ahead."""

import subprocess
import sys

PROGRAM = """
import time
from dai.drivers.connections.ahead import ReadAhead

items = iter(range(6))
ahead = ReadAhead(lambda: time.sleep(600) if (item := next(items)) == 5 else item)

def rows():
    try:
        while True:
            yield ahead.next()
    finally:
        ahead.close()

stream = rows()
for _ in range(5):
    print(next(stream))
    time.sleep(0.05)
print(ahead.busy)
"""


def test_a_program_ends_without_what_is_read_ahead() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], timeout=30, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "2", "3", "4", "True"]
