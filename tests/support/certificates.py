"""Self-signed certificates, made by openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest


def openssl(*arguments: str) -> None:
    """Run openssl; skips the test where there is none."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl here")
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=30)


def make_certificate(directory: Path, name: str, holds: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
    """Certificate and key in PEM files called `name`; the certificate `holds` these names."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", f"subjectAltName={holds}"),
        *("-keyout", str(key), "-out", str(certificate)),
    )
    return certificate, key
