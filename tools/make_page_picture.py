#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the picture of the server's page in README: a conversation with a model, its KV cache compacted.
README has it without loss as docs/page.webp (cwebp -lossless). make_page_picture.py [MODEL.gguf] [OUT.png]; it needs Chromium and a built server
(SHARPI_SERVER, or build/examples/server/server). Without a model it takes the real one that
tools/models/fetch.sh fetched."""
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "server"))
from devtools import Browser, Page, find_browser  # noqa: E402
from serving import Server  # noqa: E402

MOST_BYTES = 300_000
TEXT = """Here are my notes about the garden. Answer my questions with them.
- The old pear tree by the gate was planted in 1934 and gives small, hard pears that are best in October.
- The pond is two metres deep in the middle. Nobody feeds the fish, and there are more of them every year.
- The key of the shed hangs behind the third flower pot, the blue one.
- Tomatoes grow on the south wall; last year it was too wet and most of them were lost.
- The bees belong to the neighbour, who brings four jars of honey every August.
Where is the key of the shed?"""


def talk(page, text, most_seconds=120):
    page.click("#prompt")
    page.type(text)
    page.press("Enter")
    page.wait("document.querySelector('.message.user:nth-last-child(2)') !== null", "the message")
    page.wait("document.querySelector('#stop').hidden", "the answer to end", most_seconds)


def main():
    fetched = [str(ROOT / "tools" / "models" / "fetch.sh"), "smollm2-135m"]
    model = sys.argv[1] if len(sys.argv) > 1 else subprocess.run(
        fetched, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "page.png"
    with Server(model, "--temp", "0") as server, Browser(find_browser()) as browser:
        page = Page(browser, 1280, 1040)
        page.open(server.url + "/")
        page.wait("document.querySelector('#model').textContent !== ''", "the model's name")
        page.run("sessionStorage.setItem('sharpi', JSON.stringify({settings: {temperature: 0, maxTokens: 220}}))")
        page.open(server.url + "/")
        talk(page, TEXT)
        page.wait("!document.querySelector('#compact').disabled", "something to compact")
        page.run("document.querySelector('#budget').focus()")
        page.press("Home")
        for _ in range(80):
            page.press("ArrowRight")  # 96 rows
        page.click("#compact")
        page.wait("document.querySelector('#report').textContent.startsWith('Kept')", "the report")
        talk(page, "And who owns the bees?")
        page.run("document.activeElement.blur()")
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=1030)
        time.sleep(5)  # the panel looks again, and bars have moved
        page.picture(out)
    size = out.stat().st_size
    print(f"{out}: {size} bytes")
    return 0 if size <= MOST_BYTES else f"that is more than {MOST_BYTES}"


if __name__ == "__main__":
    sys.exit(main())
