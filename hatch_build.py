"""The README and the addresses in the metadata of the packages, made absolute: a package index has no other file."""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r'(?:(?<=\]\()|(?<=src=")|(?<=srcset="))(?!https?://)[^)"]+')


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        """Lead links into the repository at PROJECT_URL. Without this variable, they stay as they are."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        if url := os.environ.get("PROJECT_URL"):

            def absolute(link: re.Match[str]) -> str:
                view = "raw" if link[0].endswith((".png", ".svg")) else "blob"
                return f"{url}/{view}/v{metadata['version']}/{link[0]}"

            text = RELATIVE.sub(absolute, text)
            metadata["urls"] = {
                "Repository": url,
                "Changelog": f"{url}/blob/main/CHANGELOG.md",
                "Runbook": f"{url}/blob/v{metadata['version']}/docs/howto/runbook.md",  # to which the dashboard leads
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
