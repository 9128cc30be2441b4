"""Build sdist and wheel, check them, and try the wheel as a new user does.

    python tests/release/dist.py [PYTHON ...]

The archives go to dist/. Under each interpreter the wheel is installed without extras and
constraints into an empty environment, where the command line fits a file and writes a report
without pictures. Then what its message asks for is installed, and the Python code of README.md runs
in an empty folder.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RELATIVE_LINK = re.compile(r"\]\((?!https?://)[^)]*\)")
PACKAGED = {".py", ".typed", ".js", ".css", ".j2"}
LARGEST_WHEEL = 1_000_000  # bytes; data, figures or notebooks would show here
SOURCES = ("pyproject.toml", "src/gpssm/__init__.py", "tests/conftest.py", "CITATION.cff")


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel made from it."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def check(sdist: Path, wheel: Path) -> None:
    """Raise unless the metadata are in order, and the archives hold what they should and no more."""
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], check=True)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        broken = RELATIVE_LINK.findall(archive.read(metadata).decode())
    if broken:
        raise SystemExit(f"Links that are relative to the repository: {', '.join(broken)}")
    foreign = [
        name
        for name in names
        if not (name.startswith("gpssm/") and Path(name).suffix in PACKAGED)
        and ".dist-info/" not in name
    ]
    if foreign or wheel.stat().st_size > LARGEST_WHEEL:
        raise SystemExit(f"{wheel.name}, {wheel.stat().st_size} bytes, holds {foreign}")
    modules = {path.relative_to(ROOT / "src").as_posix() for path in ROOT.glob("src/**/*.py")}
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    if missing := (modules - {*names}) | ({*SOURCES} - sources):
        raise SystemExit(f"The archives lack {', '.join(sorted(missing))}.")


def install(python: str, wheel: Path, folder: Path) -> Path:
    """The interpreter of a new environment with the wheel and nothing that it does not ask for."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    interpreter = folder / "bin" / "python"
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", wheel], check=True)
    return interpreter


def environment() -> dict[str, str]:
    """Variables with which the sources are not found."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return variables | {"MPLBACKEND": "agg", "COLUMNS": "200"}


def run_without_extras(interpreter: Path, folder: Path) -> None:
    """Fit a file on the command line, and install what its message asks for."""
    gpssm = interpreter.with_name("gpssm")
    fetch = [gpssm, "data", "fetch", "sim:duffing"]
    subprocess.run(fetch, cwd=folder, env=environment(), check=True)
    fit = [gpssm, "fit", "duffing.csv", "-y", "y", "-u", "u", "--train", "0.5", "--out", "run"]
    result = subprocess.run(
        [*fit, "--method", "arx"],
        cwd=folder,
        env=environment(),
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    hint = re.search(
        r"Without matplotlib there will be no figures: pip (install \S+)", result.stdout
    )
    page = folder / "run" / "report.html"
    if hint is None or "No picture was drawn" not in page.read_text(encoding="utf-8"):
        raise SystemExit(f"Without matplotlib, nothing says so:\n{result.stdout}")
    install = [interpreter, "-m", "pip", "--quiet", *hint[1].split()]
    subprocess.run(install, check=True)


def run_readme(interpreter: Path, folder: Path) -> None:
    """Run the Python code of README.md where neither the sources nor a cache are found."""
    code = "\n".join(CODE.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    subprocess.run([interpreter, "-c", code], cwd=folder, env=environment(), check=True)
    if not (folder / "forecast.png").is_file():
        raise SystemExit("README's code has drawn nothing.")


def main() -> None:
    """Build, check, and try under each interpreter."""
    parser = argparse.ArgumentParser(description="Build and try the archives of a release.")
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    sdist, wheel = build(ROOT / "dist")
    check(sdist, wheel)
    for python in parser.parse_args().pythons:
        with tempfile.TemporaryDirectory() as folder:
            interpreter = install(python, wheel, Path(folder) / "venv")
            run_without_extras(interpreter, Path(folder))
            run_readme(interpreter, Path(folder))
            print(f"{wheel.name} runs under {python}.", flush=True)


if __name__ == "__main__":
    main()
