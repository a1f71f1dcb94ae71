"""UDDI4J 2.0.5 with Axis 1.4 on a JVM: the client that programs of 2004 have. Skipped where there is no JDK, or no
Maven that gets the library."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dai.api.server.serve import background
from tests.api.conftest import configured

pytestmark = pytest.mark.server
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>none</groupId><artifactId>uddi4j-client</artifactId><version>1</version><dependencies>
<dependency><groupId>org.uddi4j</groupId><artifactId>uddi4j</artifactId><version>2.0.5</version></dependency>
<dependency><groupId>axis</groupId><artifactId>axis</artifactId><version>1.4</version></dependency>
</dependencies></project>"""
SAID = """service Sky & sea
binding http://data/service
businesses 1
refused 10210
deleted true
discarded true
"""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the compiled program and of what it uses."""
    maven, compiler = shutil.which("mvn"), shutil.which("javac")
    if maven is None or compiler is None:
        pytest.skip("needs Maven and a JDK")
    directory: Path = tmp_path_factory.mktemp("uddi4j")
    (directory / "pom.xml").write_text(_POM)
    command = [maven, "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=path"]
    try:
        subprocess.run(command, cwd=directory, capture_output=True, timeout=200, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("UDDI4J cannot be had")
    path = (directory / "path").read_text()
    source = Path(__file__).with_name("Uddi4j.java")
    compiling = [compiler, "-nowarn", "-cp", path, "-d", str(directory), str(source)]
    subprocess.run(compiling, capture_output=True, timeout=100, check=True)
    return f"{path}:{directory}"


def test_uddi4j_publishes_and_finds(classes: str, tmp_path: Path) -> None:
    with background(configured(tmp_path, {}, registry={"store": "sqlite:///registry.db"})) as running:
        done = subprocess.run(
            ["java", "-cp", classes, "Uddi4j", running.url], capture_output=True, text=True, timeout=100, check=False
        )
    assert done.stdout == SAID, done.stderr
