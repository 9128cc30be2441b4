"""The service of examples/service.py, killed between two rows, forecasts as if it had not been."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import gpssm

EXAMPLES = Path(__file__).parent.parent / "examples"
HORIZON, ROWS = 10, 19
RNG = np.random.default_rng(0)
Y, U = 1.5 + 0.2 * RNG.normal(size=(2, ROWS)), 1.2 + 0.3 * RNG.random((2, ROWS))
AHEAD = [[1.2]] * HORIZON


class Client:
    """A process of the service, and requests to it."""

    def __init__(self, folder):
        command = [sys.executable, str(EXAMPLES / "service.py"), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--folder", str(folder)], stdout=subprocess.PIPE, text=True
        )
        self.greeting = self.process.stdout.readline()
        self.url = self.greeting.split()[1]

    def ask(self, path, content=None):
        body = None if content is None else json.dumps(content).encode()
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.url}{path}", body), timeout=60
        ) as reply:
            return json.load(reply)

    def send(self, stream, row, **changes):
        y = None if row == 3 else Y[stream, row]
        request = {"stream": f"s{stream}", "row": row, "y": [y], "u": [U[stream, row]]}
        return self.ask("/rows", request | {"ahead": AHEAD} | changes)

    def refused(self, *arguments, **changes):
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.send(*arguments, **changes)
        return caught.value.code, json.load(caught.value)["error"]

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    series = gpssm.Series(1 + 0.1 * RNG.normal(size=60), RNG.random(60), outputs="y", inputs="u")
    path = tmp_path_factory.mktemp("model") / "model.nc"
    gpssm.fit(series, method="lgssm", state_dim=1, num_draws=5, num_chains=2).save(path)
    return path


@pytest.mark.slow
def test_a_service_survives_a_kill_without_a_lost_row(model, tmp_path):
    posterior = gpssm.load(model)
    (tmp_path / "model.nc").write_bytes(model.read_bytes())
    client = Client(tmp_path)
    compiled = []
    for row in range(ROWS - 1):
        answers = [client.send(stream, row) for stream in range(2)]
        compiled.append(client.ask("/status")["compilations"])
    assert compiled[-1] == compiled[1]  # nothing after the first rows
    assert client.refused(0, ROWS - 1, y=["high"])[0] == 400
    assert client.refused(0, ROWS - 1, ahead=[[None]] * HORIZON)[0] == 400
    assert client.refused(0, 3) == (409, "stream 's0' has 18 rows: send row 18, not 3")
    client.kill()
    with (tmp_path / "rows.log").open("a") as log:
        log.write('{"stream": "s0", "row": 18, "y": [')  # a row that was never answered
    client = Client(tmp_path)
    assert "after 36 rows" in client.greeting
    assert client.ask("/status")["rows"] == {"s0": 18, "s1": 18}
    for stream in range(2):
        again = client.send(stream, ROWS - 2)  # logged, but perhaps not answered
        np.testing.assert_allclose(again["mean"], answers[stream]["mean"], rtol=1e-9)
        last = client.send(stream, ROWS - 1)
        y = np.where(np.arange(ROWS) == 3, np.nan, Y[stream])
        rows = gpssm.Series(y, U[stream], outputs="y", inputs="u")
        state = posterior.condition(rows, new_experiment=True)
        forecast = state.forecast(HORIZON, AHEAD, num_paths=200, seed=ROWS - 1)
        np.testing.assert_allclose(last["mean"], forecast.mean, rtol=1e-9)
        lower, upper = forecast.interval(0.9)
        np.testing.assert_allclose(last["lower"], lower, rtol=1e-9)
        np.testing.assert_allclose(last["upper"], upper, rtol=1e-9)
    client.kill()
