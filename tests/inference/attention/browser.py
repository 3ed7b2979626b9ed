"""A headless Chromium that a test drives as a user does, over the DevTools protocol on a pipe."""

import fcntl
import itertools
import json
import os
import select
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--lang=en"),
    "--disable-features=IsolateSandboxedIframes",  # `Tab.inside_frame`
    *("--remote-debugging-pipe", "--window-size=1200,900"),
]
TIMEOUT = 60.0  # seconds, for an answer or for what is waited for
KEYS = {
    "Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36,
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip
SHIFT = 8  # of the protocol's modifiers


class Tab:
    """A page in the browser: what a user does to it, and what it did.

    Attributes:
        requests: addresses that it asked for since this list was last cleared, whether or not it was let.
        errors: what its scripts threw, and warnings and errors on its console, likewise.
    """

    def __init__(self, to_browser: int, from_browser: int):
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._to_browser, self._from_browser = to_browser, from_browser
        self._received = b""
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self._context: dict[str, int] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol: https://chromedevtools.github.io/devtools-protocol/."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, address: str, ready: str = "document.readyState === 'complete'") -> None:
        """Load a page afresh, also where only its fragment differs."""
        self.call("Page.navigate", url="about:blank")
        self.wait_for("location.href === 'about:blank'")
        self.call("Page.navigate", url=address)
        self.wait_for(f"location.href !== 'about:blank' && ({ready})")
        self.settle()

    def value(self, expression: str) -> Any:
        """What JavaScript makes of an expression, as JSON."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, **self._context
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not self.value(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(expression)
            time.sleep(0.01)

    def point(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """Move the pointer over an element, to a place in it from 0 to 1; gives where that is on the screen."""
        x, y = self._place(selector, across, down)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def away(self) -> None:
        """Move the pointer out of everything."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        x, y = self.point(selector, across, down)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Touch with a finger; the click that comes of it has come when this returns."""
        x, y = self._place(selector, across, down)
        self.value("clicked = new Promise(done => addEventListener('click', () => done(true), {once: true})); 0")
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.value("clicked")

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys, named as in KeyboardEvent.key."""
        for key in keys:
            text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
            code = KEYS[key] if key in KEYS else ord(key.upper())
            key_of = {"key": key, "windowsVirtualKeyCode": code, "modifiers": SHIFT if shift else 0}
            down = "keyDown" if text else "rawKeyDown"
            self.call("Input.dispatchKeyEvent", type=down, text=text, **key_of)
            self.call("Input.dispatchKeyEvent", type="keyUp", **key_of)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        scale = 2 if phone else 1
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.settle()

    def scheme(self, name: str) -> None:
        """Prefer "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
        self.settle()

    def settle(self) -> None:
        """Two frames: what observers of sizes do, a frame late, is done."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    @contextmanager
    def inside_frame(self) -> Iterator[None]:
        """In it `value` and `wait_for` are about the document of the page's first frame."""
        frame = self.call("Page.getFrameTree")["frameTree"]["childFrames"][0]["frame"]["id"]
        self._context = {"contextId": self.call("Page.createIsolatedWorld", frameId=frame)["executionContextId"]}
        try:
            yield
        finally:
            self._context = {}

    def _place(self, selector: str, across: float, down: float) -> tuple[float, float]:
        element = f"document.querySelector({json.dumps(selector)})"
        before = self.value("scrollY")
        if self.value(f"{element}.scrollIntoView({{block: 'center'}}), scrollY") != before:
            self.settle()  # a finger finds things where they were shown last
        box = self.value(
            f"(({{left, top, width, height}}) => [left, top, width, height])({element}.getBoundingClientRect())"
        )
        return box[0] + across * box[2], box[1] + down * box[3]

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"]["text"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            if not select.select([self._from_browser], [], [], TIMEOUT)[0]:
                raise TimeoutError("the browser does not answer")
            some = os.read(self._from_browser, 1 << 20)
            if not some:
                raise ConnectionError("the browser has ended")
            self._received += some
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser(profile: Path) -> Iterator[Tab]:
    """Start Chromium with a profile of its own; end it."""
    assert CHROMIUM is not None
    requests, answers = os.pipe(), os.pipe()
    # Chromium reads file descriptor 3 and writes to 4. Those of the pipes might be the same numbers: move them away.
    given = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in (requests[0], answers[1])]
    os.close(requests[0])
    os.close(answers[1])
    process = os.posix_spawn(
        CHROMIUM,
        [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}"],
        os.environ,
        file_actions=[
            *((os.POSIX_SPAWN_DUP2, descriptor, place) for place, descriptor in enumerate(given, start=3)),
            *((os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_WRONLY, 0) for place in (1, 2)),
        ],
    )
    for descriptor in given:
        os.close(descriptor)
    tab = None
    try:
        tab = Tab(requests[1], answers[0])
        yield tab
    finally:
        if tab is not None:
            tab._session = {}
            with suppress(OSError):
                tab.call("Browser.close")
        os.close(requests[1])
        os.close(answers[0])
        os.waitpid(process, 0)
