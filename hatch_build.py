"""Puts the commit into a wheel: `raypipe --version` and the manifests of runs name it."""

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Called by hatchling. A source distribution has no git, so it carries the file on to its wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the checkout says it
            return
        file = Path(self.root, "COMMIT")
        if not file.is_file():
            command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
            said = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
            if said.returncode:  # an export without git: the wheel names no commit
                return
            file = Path(self.directory, "COMMIT")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(said.stdout, encoding="ascii")
        build_data["force_include"][str(file)] = "raypipe/COMMIT" if self.target_name == "wheel" else "COMMIT"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        Path(self.directory, "COMMIT").unlink(missing_ok=True)
