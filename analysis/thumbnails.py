"""The small pictures of analysis/README.md: the first figure of each notebook, run on the results in runs/.

python analysis/thumbnails.py [RUNS]
"""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path

import nbclient
import nbformat
from PIL import Image

HERE = Path(__file__).resolve().parent
# Notebook -> the variable that names its results, and where they lie below the folder of runs.
RESULTS = {
    "0-tutorial": ("FEDMPI_TUTORIAL", "tutorial"),  # makes its own there
    "1-first-look": ("FEDMPI_RUN", "quickstart/amplified.h5"),
    "2-methods": ("FEDMPI_RUNS", "methods"),
    "3-intervals-rates-amplification": ("FEDMPI_RUNS", "intervals"),
    "4-why-amplification-helps": ("FEDMPI_APPENDIX", "appendix"),
    "5-always-available": ("FEDMPI_ALWAYS", "always"),
    "6-from-python": ("FEDMPI_NOTHING", ""),  # makes its own
    "theory": ("FEDMPI_THEORY", "theory"),
}
WIDTH, COLOURS = 720, 256


def main(runs: str) -> None:
    """Run each notebook and keep its first figure, scaled down."""
    for name, (variable, results) in RESULTS.items():
        os.environ[variable] = str(Path(runs).resolve() / results)
        notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(HERE)}}).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        figure = next(o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {}))
        image = Image.open(io.BytesIO(base64.b64decode(figure))).convert("RGB")
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
        image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(HERE / f"{name}.png", optimize=True)
        said = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
        print(f"{name}.png: {said.strip()}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(HERE.parent / "runs"))
