"""Throughput, latency, CPU time, memory and compilations of `examples/service.py`.

    taskset -c 0,1 python benchmarks/service.py [--seconds 60]

Clients send the rows of many streams in turn and wait for each forecast. Half-way, the service is
killed and started again on the same folder; the clients repeat requests without an answer.
"""

import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

from service import HORIZON  # noqa: E402
from stream import plant  # noqa: E402


def start(folder: Path, port: int = 0) -> tuple[subprocess.Popen[str], int]:
    """Start a process of the service, and return it with its port once it serves."""
    command = [sys.executable, str(EXAMPLES / "service.py"), "--folder", str(folder)]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line.split()[1].rpartition(":")[2])


def request(connection: http.client.HTTPConnection, path: str, content: Any = None) -> Any:
    """Return the answer to a request; raise if it is refused."""
    body = None if content is None else json.dumps(content)
    connection.request("GET" if body is None else "POST", path, body)
    reply = connection.getresponse()
    answer = json.loads(reply.read())
    if reply.status != 200:
        raise ValueError(answer)
    return answer


class Client(threading.Thread):
    """Sends rows of its streams in turn until the deadline.

    Parameters
    ----------
    streams
        The numbers of the streams.
    port
        The port of the service.
    deadline
        When to stop, on the monotonic clock.
    """

    def __init__(self, streams: range, port: int, deadline: float) -> None:
        super().__init__()
        self.streams = streams
        self.port = port
        self.deadline = deadline
        self.answered = dict.fromkeys((f"tank-{number}" for number in streams), 0)
        self.latencies: list[tuple[float, float]] = []  # times of requests, and seconds

    def run(self) -> None:
        """Send rows."""
        series = [plant(400, 200, seed=number) for number in self.streams]
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        while time.monotonic() < self.deadline:
            for stream, rows in zip(self.answered, series, strict=True):
                row = self.answered[stream]
                y = rows.y[row % len(rows)]
                u = rows.u[row % len(rows)]
                content = {"stream": stream, "row": row, "ahead": [[1.2]] * HORIZON}
                content |= {"y": y.tolist(), "u": u.tolist()}
                sent = time.monotonic()
                while True:
                    try:
                        request(connection, "/rows", content)
                        break
                    except (OSError, http.client.HTTPException):
                        connection.close()
                        time.sleep(0.2)
                self.latencies.append((sent, time.monotonic() - sent))
                self.answered[stream] = row + 1


def main() -> None:
    """Print a table of figures."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument(
        "--model", type=Path, help="a posterior of the tank; by default it is fitted"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    if options.model:
        shutil.copy(options.model, folder / "model.nc")
    process, port = start(folder)
    begin = time.monotonic()
    deadline = begin + options.seconds
    groups = [range(first, options.streams, options.clients) for first in range(options.clients)]
    clients = [Client(streams, port, deadline) for streams in groups]
    for client in clients:
        client.start()
    watcher = http.client.HTTPConnection("127.0.0.1", port)
    while min(min(client.answered.values()) for client in clients) < 2:
        time.sleep(0.1)
    first = request(watcher, "/status")
    time.sleep(max(begin + options.seconds / 2 - time.monotonic(), 0.1))
    half = request(watcher, "/status")
    watcher.close()
    process.kill()
    process.wait()
    killed = time.monotonic()
    process, _ = start(folder, port)
    resumed = time.monotonic()
    for client in clients:
        client.join()
    last = request(watcher, "/status")
    process.kill()
    answered = {name: rows for client in clients for name, rows in client.answered.items()}
    steady = [
        seconds
        for client in clients
        for sent, seconds in client.latencies
        if sent > resumed or sent + seconds < killed
    ]
    total = sum(answered.values())
    busy = killed - begin + max(deadline - resumed, 0.0)
    median, tail = 1e3 * np.quantile(steady, [0.5, 0.99])
    grown = sum(half["rows"].values()) - sum(first["rows"].values())
    print(f"streams, clients, horizon          {options.streams}, {options.clients}, {HORIZON}")
    print(f"rows answered, per second          {total}, {total / busy:.0f}")
    print(f"latency, median and 99 %           {median:.1f} ms, {tail:.1f} ms")
    cpu = 1e3 * (half["cpu_s"] - first["cpu_s"]) / grown
    print(f"CPU of the service per row         {cpu:.1f} ms")
    print(
        f"memory after first rows, {grown:6d} later  "
        f"{first['memory_mb']:.0f} MB, {half['memory_mb']:.0f} MB"
    )
    print(f"compilations after the first rows  {half['compilations'] - first['compilations']}")
    print(f"resumed after the kill             {resumed - killed:.1f} s, with imports")
    print(f"rows lost, rows twice              {'none' if last['rows'] == answered else 'SOME'}")


if __name__ == "__main__":
    main()
