"""Clients on a JVM: UDDI4J 2.0.5 with Axis 1.4, which programs of 2004 have, and the stubs of jUDDI 3.3.10 (uddi-ws)
over JAX-WS. Skipped where there is no JDK, or no Maven that gets the libraries."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dai.api.server.serve import background
from tests.api.conftest import configured
from tests.interop.java import QUICK

pytestmark = pytest.mark.server
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>none</groupId><artifactId>uddi-client</artifactId><version>1</version><dependencies>{}</dependencies></project>
"""
CLIENTS = {
    "Uddi4j": (
        ("org.uddi4j:uddi4j:2.0.5", "axis:axis:1.4"),
        """service Sky & sea
binding http://data/service
businesses 1
refused 10210
deleted true
discarded true
""",
    ),
    "UddiWs": (
        ("org.apache.juddi:uddi-ws:3.3.10", "com.sun.xml.ws:jaxws-rt:2.3.7"),
        """service Sky & sea
binding http http://data/service
category sky
related Archive fromKey
status:complete parent
registered Archive Observatory
refused 10210
deleted 0
""",
    ),
}
"""By the class of the program: its libraries, and what it says."""


def compiled(program: str, libraries: tuple[str, ...], directory: Path) -> str:
    """The class path of the compiled program and of what it uses."""
    maven, compiler = shutil.which("mvn"), shutil.which("javac")
    if maven is None or compiler is None:
        pytest.skip("needs Maven and a JDK")
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in (each.split(":") for each in libraries)
    )
    (directory / "pom.xml").write_text(_POM.format(dependencies))
    command = [maven, "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=path"]
    options = {**os.environ, "MAVEN_OPTS": " ".join(QUICK)}
    try:
        subprocess.run(command, cwd=directory, env=options, capture_output=True, timeout=200, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"{libraries[0]} cannot be had")
    path = (directory / "path").read_text()
    source = Path(__file__).with_name(f"{program}.java")
    compiling = [compiler, *(f"-J{each}" for each in QUICK), "-nowarn", "-cp", path, "-d", str(directory), str(source)]
    subprocess.run(compiling, capture_output=True, timeout=100, check=True)
    return f"{path}:{directory}"


@pytest.mark.parametrize("program", CLIENTS)
def test_it_publishes_and_finds(program: str, tmp_path: Path) -> None:
    libraries, said = CLIENTS[program]
    classes = compiled(program, libraries, tmp_path)
    with background(configured(tmp_path, {}, registry={"store": "sqlite:///registry.db"})) as running:
        command = ["java", *QUICK, "-cp", classes, program, running.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == said, done.stderr
