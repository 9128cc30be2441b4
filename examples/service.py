"""A service that keeps the states of many streams in memory and forecasts each of them row by row.

    python examples/service.py [--port 8765] [--folder service] [--quick]

It listens on the loopback interface only. A client posts one row of a stream and the inputs ahead,
and gets the forecast after that row:

    POST /rows    {"stream": "tank-7", "row": 12, "y": [0.8], "u": [1.1], "ahead": [[1.1], [1.2]]}
    200           {"row": 12, "mean": [[0.83], ...], "lower": [[0.80], ...], "upper": [[0.86], ...]}
    GET /status   {"rows": {"tank-7": 13, ...}, "memory_mb": 512.3, "compilations": 9, "cpu_s": 7.1}

Each row is written to a log before it is answered, so a process that is killed at any moment can
restart from the log without losing a row. Rows are numbered from 0. A row that was logged but not
answered may be sent again and counts once; a row that would leave a gap is refused (409).

With --quick it sends a few rows to itself and exits.
"""

import argparse
import json
import os
import resource
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jax
import numpy as np
from stream import plant

import gpssm

HORIZON = 10  # steps of each forecast: equal horizons compile once
NUM_PATHS = 200
BLOCKS = (256, 16, 1)  # rows of the log that are filtered at once: each size compiles once
LARGEST = 2**16  # bytes of a request


class Gap(ValueError):
    """A row that does not directly follow the previous row of its stream."""


class Service:
    """The streams of one model: a posterior for each, and the log of their rows.

    Parameters
    ----------
    model
        The posterior that streams start from, each as a new experiment.
    log
        File of the log. An incomplete last line was never answered, and is removed.
    """

    def __init__(self, model: gpssm.Posterior, log: Path) -> None:
        self.model = model
        self.posteriors: dict[str, gpssm.Posterior] = {}
        self.rows: dict[str, int] = {}
        self.lock = threading.Lock()
        self.forecast(self.after("", model, self.series([[0.0]], [[1.0]])), [[1.0]] * HORIZON, 0)
        log.touch()
        whole = log.read_bytes().rpartition(b"\n")
        os.truncate(log, len(whole[0]) + len(whole[1]))
        self.resume(map(json.loads, whole[0].splitlines()))
        self.log = log.open("ab")

    def resume(self, lines: Iterator[dict[str, Any]]) -> None:
        """Filter the rows of the log, stream by stream and in blocks."""
        logged: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            logged.setdefault(line["stream"], []).append(line)
        for stream, rows in logged.items():
            first = 0
            for size in BLOCKS:
                while len(rows) - first >= size:
                    block = rows[first : first + size]
                    series = self.series([row["y"] for row in block], [row["u"] for row in block])
                    start = self.posteriors.get(stream, self.model)
                    self.posteriors[stream] = self.after(stream, start, series)
                    first += size
            self.rows[stream] = len(rows)

    def series(self, y: list[list[float]], u: list[list[float]]) -> gpssm.Series:
        """Return rows with the model's columns; a missing output is null."""
        experiment = self.model.dataset.experiments[0]
        outputs = np.array(y, float).reshape(len(y), -1)
        names = {"outputs": experiment.outputs, "inputs": experiment.inputs}
        return gpssm.Series(outputs, np.array(u, float).reshape(len(y), -1), **names)

    def after(self, stream: str, posterior: gpssm.Posterior, rows: gpssm.Series) -> gpssm.Posterior:
        """Return the posterior of a stream after its next rows."""
        return posterior.condition(rows, new_experiment=stream not in self.posteriors)

    def forecast(
        self, posterior: gpssm.Posterior, ahead: list[list[float]], row: int
    ) -> dict[str, Any]:
        """Return the mean and the 90 % interval of the next steps."""
        found = posterior.forecast(HORIZON, np.array(ahead), num_paths=NUM_PATHS, seed=row)
        lower, upper = found.interval(0.9)
        parts = {"mean": found.mean, "lower": lower, "upper": upper}
        return {"row": row} | {name: values.tolist() for name, values in parts.items()}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Log a row, and return the forecast after it."""
        stream, row = str(request["stream"]), int(request["row"])
        with self.lock:
            known = self.rows.get(stream, 0)
            posterior = self.posteriors.get(stream, self.model)
            if row == known - 1:
                return self.forecast(posterior, request["ahead"], row)
            if row != known:
                raise Gap(f"stream {stream!r} has {known} rows: send row {known}, not {row}")
            rows = self.series([request["y"]], [request["u"]])
            posterior = self.after(stream, posterior, rows)
            forecast = self.forecast(posterior, request["ahead"], row)
            line = {name: request[name] for name in ("stream", "row", "y", "u")}
            self.log.write(json.dumps(line).encode() + b"\n")
            self.log.flush()
            os.fsync(self.log.fileno())
            self.posteriors[stream] = posterior
            self.rows[stream] = known + 1
            return forecast

    def status(self) -> dict[str, Any]:
        """Return the rows of each stream, and the process's memory, compilations and CPU time."""
        statm = Path("/proc/self/statm")
        if statm.exists():
            memory = int(statm.read_text().split()[1]) * resource.getpagesize()
        else:
            memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        used = {"memory_mb": memory / 1e6, "cpu_s": time.process_time()}
        return {"rows": self.rows, "compilations": len(COMPILED), **used}


COMPILED: list[str] = []


def count_compilations(event: str, *_: Any, **__: Any) -> None:
    """Record that a program was compiled or loaded."""
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(event)


class Handler(BaseHTTPRequestHandler):
    """Handle requests in JSON on persistent connections."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: a second packet would wait for an acknowledgement
    disable_nagle_algorithm = True
    service: Service

    def do_GET(self) -> None:
        """Answer with the status."""
        known = self.path == "/status"
        self.reply(200 if known else 404, self.service.status() if known else {})

    def do_POST(self) -> None:
        """Process a row."""
        length = int(self.headers.get("Content-Length", 0))
        if self.path != "/rows" or not 0 < length <= LARGEST:
            self.close_connection = True
            return self.reply(404 if self.path != "/rows" else 413, {})
        try:
            answer = self.service.answer(json.loads(self.rfile.read(length)))
        except Gap as error:
            return self.reply(409, {"error": str(error)})
        except (ValueError, TypeError, KeyError) as error:
            return self.reply(400, {"error": f"{type(error).__name__}: {error}"})
        return self.reply(200, answer)

    def reply(self, code: int, content: dict[str, Any]) -> None:
        """Send an answer."""
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do not print requests: the log of rows has them."""


def load_model(path: Path, quick: bool) -> gpssm.Posterior:
    """Load the model of the tank, or fit and save it if the file does not exist."""
    if path.exists():
        return gpssm.load(path)
    sampled = {"num_inducing": 10, "start": "em", "num_warmup": 150, "num_draws": 50}
    settings = {"method": "lgssm", "num_draws": 10} if quick else sampled
    posterior = gpssm.fit(plant(150, 150), state_dim=1, num_chains=2, progress=False, **settings)
    posterior = posterior.thinned(20)
    posterior.save(path)
    return posterior


def feed_itself(url: str, length: int) -> None:
    """Send rows of two tanks to the service and print its forecasts."""
    for number in range(2):
        rows = plant(length, length, seed=number + 1)
        for row in range(length):
            request = {"stream": f"tank-{number}", "row": row, "ahead": [[1.2]] * HORIZON}
            request |= {"y": rows.y[row].tolist(), "u": rows.u[row].tolist()}
            posted = urllib.request.Request(f"{url}/rows", json.dumps(request).encode())
            with urllib.request.urlopen(posted) as reply:
                forecast = json.load(reply)
            ends = forecast["lower"][0][0], forecast["mean"][0][0], forecast["upper"][0][0]
        print(f"tank-{number} after {length} rows: {ends[1]:.3f} in [{ends[0]:.3f}, {ends[2]:.3f}]")


def main() -> None:
    """Resume from the folder and serve until the process ends."""
    parser = argparse.ArgumentParser(description="Forecast many streams row by row.")
    parser.add_argument("--port", type=int, default=8765, help="0 for any free port")
    parser.add_argument("--folder", type=Path, default=Path("service"))
    parser.add_argument("--quick", action="store_true", help="send a few rows to itself and exit")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    jax.monitoring.register_event_duration_secs_listener(count_compilations)
    service = Service(
        load_model(options.folder / "model.nc", options.quick), options.folder / "rows.log"
    )
    Handler.service = service
    port = 0 if options.quick else options.port
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    print(f"serving {url} after {sum(service.rows.values())} rows", flush=True)
    if not options.quick:
        server.serve_forever()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    feed_itself(url, 15)
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
