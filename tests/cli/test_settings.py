"""Settings: validation, and the round trip through TOML."""

import dataclasses
import tomllib

import numpy as np
import pytest

from gpssm.cli.settings import Settings, from_toml
from gpssm.methods import METHODS


@pytest.fixture
def tank(tmp_path):
    path = tmp_path / "tank.csv"
    rows = np.arange(40.0).reshape(20, 2) ** 2
    path.write_text("level,pump\n" + "\n".join(f"{a},{b}" for a, b in rows))
    return path


def make(path, **fields):
    return Settings((str(path),), **({"outputs": ("level",), "inputs": ("pump",)} | fields))


@pytest.mark.parametrize("method", METHODS)
def test_toml_gives_back_everything_for_every_method(tank, tmp_path, method):
    fit = {"method": method, "seed": 3, "state_dim": "auto", "fixed": ["kernel.*"], "thin": 3}
    settings = make(
        tank, train=0.5, fit=fit, reader={"dt": 0.5, "units": {"level": "m"}}
    ).complete()
    (tmp_path / "config.toml").write_text(settings.to_toml())
    again = Settings(**from_toml(tmp_path / "config.toml"))
    assert again.to_toml() == settings.to_toml()
    assert again.spec.settings.thin == 3
    assert (again.spec, again.runtime) == (settings.spec, settings.runtime)
    assert again.spec.fixed == ("kernel.*",)
    assert not again.changes()


def test_a_changed_file_or_version_is_noticed(tank):
    settings = make(tank).complete()
    tank.write_text(tank.read_text() + "1,2\n")
    other = dataclasses.replace(settings, versions={**settings.versions, "jax": "0.0.1"})
    assert [word.split()[0] for word in other.changes()] == ["jax", "contents"]


def test_files_in_a_configuration_are_relative_to_it(tank, tmp_path):
    (tmp_path / "run.toml").write_text('[data]\nfiles = ["tank.csv"]\noutputs = ["level"]\n')
    assert len(Settings(**from_toml(tmp_path / "run.toml")).load()[0][0]) == 20


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"fit": {"method": "ffdv"}}, "'ffvd'"),
        ({"fit": {"kernel": "se+matren32"}}, "'matern32'"),
        ({"fit": {"likelihood": "gausian"}}, "'gaussian'"),
        ({"fit": {"mean": "function"}}, "Known: linear, linear-fixed, identity, zero;"),
        ({"fit": {"statedim": 2}}, "'state_dim'"),
        ({"fit": {"num_draw": 2}}, "'num_draws'"),
        ({"fit": {"num_draws": 0}}, "at least 1"),
        ({"train": 0.0}, "fraction between 0 and 1"),
        ({"train": 1.5}, "fraction between 0 and 1"),
        ({"train": -3}, "fraction between 0 and 1"),
        ({"train": True}, "fraction between 0 and 1"),
        ({"outputs": ()}, "no outputs"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(tank, fields, hint):
    with pytest.raises((ValueError, TypeError, KeyError), match=hint):
        make(tank, **fields)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[data]\nfile = 1", "Did you mean 'files'"),
        ("[data]\nregrids = true", "Did you mean 'regrid'"),
        ("[fitt]", "'fit'"),
        ("[method]\nnum_draw = 2", "Did you mean 'num_draws'"),
        ('[fit]\nmethod = "ffdv"\n[method]\nnum_draws = 2', "Did you mean 'ffvd'"),
        ("a = ", "not a TOML file"),
    ],
)
def test_a_wrong_configuration_is_refused_with_a_hint(tmp_path, text, hint):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ValueError, match=hint):
        from_toml(tmp_path / "run.toml")


def test_the_last_of_several_files_is_split(tank):
    train, test = Settings((str(tank), str(tank)), ("level",), train=15).load()
    assert [len(series) for series in train] == [20, 15]
    assert len(test) == 5
    np.testing.assert_array_equal(test.y, train[0].y[15:])


def test_a_split_that_leaves_nothing_is_refused(tank):
    with pytest.raises(ValueError, match="of the 20 of"):
        make(tank, train=20).load()


@pytest.mark.parametrize(
    ("content", "outputs"),
    [
        ("\ufefflevel,pump\r\n1.5,2\r\n2.5,3\r\n".encode(), ("level",)),
        (b"level;pump\n1,5;2\n2,5;3\n", ("level",)),
        (b"level\tpump\n1.5\t2\n2.5\t3\n", ("0",)),
        (b'"level","pump, 2"\n1.5,2\n2.5,3\n', ("level",)),
    ],
)
def test_files_as_spreadsheets_write_them(tmp_path, content, outputs):
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    np.testing.assert_array_equal(Settings((str(path),), outputs).load()[0][0].y, [[1.5], [2.5]])


def test_structure_is_kept():
    wiring = [[True, False], [True, True]]
    settings = Settings(("a.csv",), ("y",), fit={"wiring": wiring, "state_dim": 2})
    assert settings.spec.wiring == ([True, False], [True, True])
    assert tomllib.loads(settings.to_toml())["fit"]["wiring"] == wiring
    assert Settings(("a.csv",), ("y",), fit={"wiring": "chain"}).spec.wiring == "chain"
