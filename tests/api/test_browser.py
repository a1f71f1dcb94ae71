"""A browser pulls blocks with their context as a compression dictionary (RFC 9842), by fetch alone."""

import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from dai.api.blocks import framing, pulling
from dai.api.server.serve import Background, background
from tests.api.conftest import XML, configured, streamed
from tests.processes import until

BROWSER = next((each for each in ("chromium", "chromium-browser", "google-chrome") if shutil.which(each)), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=60000", "--dump-dom"),
)
PAGE = b"""<!DOCTYPE html><title>blocks</title><pre></pre><script>
const [base, context, stream] = location.hash.slice(1).split(',');
const block = async number => await (await fetch(`${base}${stream}/blocks/${number}?wait=30`)).text();
async function run() {
  await (await fetch(base + context)).arrayBuffer();
  for (let tries = 0; tries < 300; tries++) {  // until the browser has stored that as a dictionary
    await block(0);
    if (await (await fetch('/coded')).json()) break;
  }
  const blocks = [];
  for (let number = 1; number < 6; number++) blocks.push(await block(number));
  return blocks;
}
run().catch(String).then(said => document.querySelector('pre').textContent = JSON.stringify(said));
</script>"""


class Page(http.server.ThreadingHTTPServer):
    """The page, and whether any block was ``sent`` compressed yet."""

    def __init__(self) -> None:
        self.sent: list[tuple[str | None, int, int]] = []
        """Content coding, bytes as they were sent, bytes of the block."""
        super().__init__(("127.0.0.1", 0), _Answers)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(http.server.BaseHTTPRequestHandler):
    server: Page

    def do_GET(self) -> None:
        kind, body = "text/html", PAGE
        if self.path == "/coded":
            threading.Event().wait(0.1)
            coded = any(coding == "dcz" for coding, _, _ in self.server.sent)
            kind, body = "application/json", json.dumps(coded).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def page() -> Iterator[Page]:
    with Page() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def service(page: Page, book: str, tmp_path: Path) -> Iterator[Background]:
    with background(configured(tmp_path, {"book": {"url": book}}, service={"origins": [page.origin]})) as running:
        yield running


def test_a_browser_pulls_blocks_with_a_dictionary(
    service: Background, page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BROWSER, "Chromium is needed (scripts/system-packages test)"

    async def noted(service: Any, request: Any, mailbox: Any, body: bytes) -> tuple[bytes, dict[str, str]]:
        coded, headers = await original(service, request, mailbox, body)
        page.sent.append((headers.get("content-encoding"), len(coded), len(body)))
        return coded, headers

    original = framing.dictionary_coded_blocks
    monkeypatch.setattr(pulling, "dictionary_coded_blocks", noted)
    with httpx.Client(base_url=service.url, timeout=60) as client:
        sessions = [client.post("/sessions", json={}).json()["id"] for _ in range(2)]
        document = streamed("select * from numbers where i < 600")
        for each in sessions:
            path = f"/resources/book/perform?session={each}&blocksize=100"
            client.post(path, content=document, headers={**XML, "Prefer": "respond-async"})
        paths = [f"/sessions/{each}/streams/out" for each in sessions]
        plain = [client.get(f"{paths[0]}/blocks/{number}?wait=30").text for number in range(6)]
        until(lambda: client.get(f"/sessions/{sessions[1]}").json()["streams"][0].get("context"))
        context = client.get(f"/sessions/{sessions[1]}").json()["streams"][0]["context"]
        page.sent.clear()
        address = f"{page.origin}/#{service.url},/contexts/{context},{paths[1]}"
        command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", address]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search("<pre>(.*)</pre>", shown, re.DOTALL)
    assert found is not None, shown
    assert json.loads(unescape(found[1])) == plain[1:]
    blocks = page.sent[-5:]
    assert [coding for coding, _, _ in blocks] == ["dcz"] * 5, page.sent
    assert all(size < 0.1 * whole for _, size, whole in blocks)
