# SPDX-License-Identifier: MIT
"""A headless Chromium, driven over its DevTools protocol by a pair of pipes: no driver program and
no package besides the browser. Page has the verbs of somebody who uses a page: click, type, press,
look; everything goes through the browser's own input queue, as a mouse and a keyboard do."""
import base64
import fcntl
import json
import os
import selectors
import shutil
import struct
import subprocess
import tempfile
import time
import zlib
from collections import Counter

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser():
    """The path of a Chromium, or None."""
    return os.environ.get("SHARPI_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class DevToolsError(Exception):
    pass


def pixels_of(png):
    """(width, colours row by row, each (red, green, blue)) of a PNG as browsers write it: 8 bits a
    channel, not interlaced."""
    at, kind, data = 8, b"", b""
    while kind != b"IEND":
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour_type, *_, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, interlaced) == (8, 0) and colour_type in (2, 6), "not as browsers write it"
        elif kind == b"IDAT":
            data += body
        at += 12 + size
    step = 3 if colour_type == 2 else 4
    raw, before, colours = zlib.decompress(data), bytes(width * step), []
    for row in range(height):
        start = row * (width * step + 1)
        line = unfiltered(raw[start], bytearray(raw[start + 1:start + 1 + width * step]), before, step)
        colours += zip(line[0::step], line[1::step], line[2::step])
        before = line
    return width, colours


def unfiltered(kind, line, above, step):
    """A row of a PNG from its differences (the format's filters 0 to 4)."""
    for i in range(len(line)) if kind else ():
        left, up, corner = (line[i - step], above[i], above[i - step]) if i >= step else (0, above[i], 0)
        ahead = left + up - corner
        line[i] = (line[i] + (left, up, (left + up) // 2, min((left, up, corner), key=lambda one: abs(ahead - one)))[kind - 1]) & 255
    return line


class Browser:
    """One browser process with an empty profile; a context manager. Not for several threads."""

    def __init__(self, path):
        self.profile = tempfile.mkdtemp(prefix="sharpi-chromium-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads at 3 and writes at 4; the copies are out of the way of these.
        far = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (theirs_in, theirs_out)]
        os.close(theirs_in), os.close(theirs_out)
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile}",
                 "--no-first-run", "--no-default-browser-check", "--disable-gpu", "--disable-dev-shm-usage",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-default-apps", "--disable-extensions", "--hide-scrollbars", "--mute-audio",
                 "--force-device-scale-factor=1", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        if os.geteuid() == 0:  # its sandbox refuses to run as root
            flags.append("--no-sandbox")
        self.process = subprocess.Popen(
            [path, *flags, "about:blank"], pass_fds=(3, 4),
            preexec_fn=lambda: (os.dup2(far[0], 3), os.dup2(far[1], 4)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in far:
            os.close(fd)
        self.reader, self.writer = ours_in, ours_out
        os.set_blocking(self.reader, False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.reader, selectors.EVENT_READ)
        self.rest, self.next_id, self.answers, self.listeners = b"", 0, {}, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close", timeout=5)
        except (DevToolsError, OSError):
            self.process.kill()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.selector.close()
        os.close(self.reader), os.close(self.writer)
        shutil.rmtree(self.profile, ignore_errors=True)

    def pump(self, seconds):
        """Reads what the browser has to say, for at most this long."""
        if not self.selector.select(max(0, seconds)):
            return
        data = os.read(self.reader, 1 << 20)
        if not data:
            raise DevToolsError("the browser ended")
        *messages, self.rest = (self.rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            else:
                for listener in self.listeners:
                    listener(message)

    def call(self, method, session=None, timeout=20, **params):
        """One command; returns its result."""
        self.next_id += 1
        number = self.next_id
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while number not in self.answers:
            if time.monotonic() > end:
                raise DevToolsError(f"{method}: no answer in {timeout} s")
            self.pump(end - time.monotonic())
        answer = self.answers.pop(number)
        if "error" in answer:
            raise DevToolsError(f"{method}: {answer['error']['message']}")
        return answer["result"]


KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowRight": (39, ""), "ArrowLeft": (37, ""),
        "Home": (36, ""), "End": (35, ""), "Space": (32, " ")}
MODIFIERS = {"Shift": 8, "Control": 2}


class Page:
    """A tab. requests: every address it asked for; complaints: errors and exceptions it reported."""

    def __init__(self, browser, width=1280, height=800, dark=False):
        self.browser = browser
        # A context of its own: no storage is shared with another page.
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.requests, self.complaints = [], []
        browser.listeners.append(self.hear)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def hear(self, message):
        if message.get("sessionId") != self.session:
            return
        method, params = message["method"], message["params"]
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def close(self):
        """May be called again."""
        if self.hear in self.browser.listeners:
            self.browser.listeners.remove(self.hear)
            self.browser.call("Target.closeTarget", targetId=self.target)

    def size(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.querySelector('main') !== null", "the page to load")

    def run(self, script):
        """The value of a JavaScript expression, awaited if it is a promise."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise DevToolsError(f"{script}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def wait(self, condition, what, seconds=30):
        """Until a JavaScript expression is true: true itself, or a value that Python takes for true."""
        end = time.monotonic() + seconds
        while True:
            value = self.run(condition)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s for {what}: {condition}")
            self.browser.pump(0.03)

    def box(self, selector):
        """[left, top, width, height] of an element in the window, or None."""
        return self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
                        "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'nearest'}})")
        left, top, width, height = self.box(selector)
        assert width > 0 and height > 0, f"{selector} cannot be seen"
        at = {"x": left + width / 2, "y": top + height / 2, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, *names):
        """A key, after the modifiers it is pressed with: press("Shift", "Tab")."""
        *held, name = names
        code, text = KEYS[name]
        flags = sum(MODIFIERS[key] for key in held)
        common = {"key": " " if name == "Space" else name, "code": name, "windowsVirtualKeyCode": code, "modifiers": flags}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def focus(self):
        """What has the focus: its id, or its text."""
        return self.run("(() => { const e = document.activeElement; return e.id || e.textContent.trim().slice(0, 40); })()")

    def screenshot(self, box=None):
        """A PNG of the window, or of a box in it: [left, top, width, height]."""
        clip = {"clip": {"x": box[0], "y": box[1], "width": box[2], "height": box[3], "scale": 1}} if box else {}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"])

    def colours(self, selector, inset=0):
        """How often each colour is seen where an element is, without its edge: Counter of (red, green, blue)."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'nearest'}})")
        left, top, width, height = self.box(selector)
        box = [left + inset, top + inset, width - 2 * inset, height - 2 * inset]
        assert box[2] >= 1 and box[3] >= 1, f"{selector} cannot be seen"
        return Counter(pixels_of(self.screenshot(box))[1])

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(self.screenshot())
