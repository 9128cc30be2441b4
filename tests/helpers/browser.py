"""A headless Chromium, driven over a pipe: enough of the DevTools protocol to open a page, click, look and print."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
FLAGS = (
    *(
        "--headless=new",
        "--remote-debugging-pipe",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ),
    *(
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-extensions",
        "--disable-background-networking",
    ),
)
PATIENCE = 60  # seconds to wait for anything


class Browser:
    """One tab. `problems` collects what the console, the network and the security policy complained about."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        to_read, self.writer = os.pipe()
        self.reader, to_write = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4; a shell puts the pipes there without a fork in this process.
        redirect = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        command = [
            "bash",
            "-c",
            redirect,
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={self.profile}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            command,
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.number, self.session = b"", 0, None
        self.problems, self.requests, self.events = [], [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Send a command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self):
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            if not select.select([self.reader], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError(f"Chromium said nothing for {PATIENCE} s")
            if not (part := os.read(self.reader, 1 << 20)):
                raise RuntimeError("Chromium ended")
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        name, details = event["method"], event["params"]
        self.events.append(name)
        if name == "Runtime.exceptionThrown":
            self.problems.append(
                details["exceptionDetails"].get("exception", {}).get("description", "exception")
            )
        if name == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(details["entry"]["text"])
        if name == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.problems.append(str(details["args"]))
        if name == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {details['message']}")
        if name == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])

    def open(self, path, width=1200, height=900, scheme="light"):
        """Show a file in a window of that size and colour scheme, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.problems, self.requests, self.events = [], [], []
        self.call("Page.navigate", url=f"file://{path}")
        while "Page.loadEventFired" not in self.events:
            self._note(self._next())
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def evaluate(self, expression):
        """The value of JavaScript, promises awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def press(self, key):
        """A key, as a person would press it."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, kind, x, y, **options):
        """`mouseMoved`, `mousePressed` or `mouseReleased` at a place in the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **options)

    def screenshot(self, full=True):
        """The page as a PNG."""
        return base64.b64decode(
            self.call("Page.captureScreenshot", captureBeyondViewport=full)["data"]
        )

    def pdf(self):
        """The page as printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def close(self):
        """End it."""
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.writer)
        os.close(self.reader)
        shutil.rmtree(self.profile, ignore_errors=True)
