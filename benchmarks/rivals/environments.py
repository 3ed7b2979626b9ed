"""Virtual environments, made once with pip, for the rivals whose packages conflict with bert_jax's own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = {
    # the backends of sentence-transformers go through optimum, which takes no transformers 5
    "optimum": [
        "sentence-transformers==5.1.2",
        "transformers==4.57.6",
        "optimum==2.1.0",
        "optimum-onnx[onnxruntime]==0.1.0",
        "optimum-intel[openvino]==1.27.0",
    ],
    # the last transformers that has Flax models
    "flax": ["transformers==4.57.6", "jax==0.10.2", "flax==0.12.8", "optax==0.2.8"],
    # it brings TensorFlow along for its tokenizers; the model runs on JAX
    "keras": ["keras-hub==0.32.0", "keras==3.15.1", "jax==0.10.2"],
}


def interpreter(environment: str | None) -> Path:
    """The environment's Python, whether it exists or not; None: this one."""
    return Path(sys.executable) if environment is None else ROOT / f".venv-{environment}" / "bin" / "python"


def make_environments() -> None:
    for environment, requirements in REQUIREMENTS.items():
        python = interpreter(environment)
        print(f"installing {', '.join(requirements)} into {python.parents[1]}", flush=True)
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
