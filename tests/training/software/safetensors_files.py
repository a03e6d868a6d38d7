"""safetensors shards and their index, as huggingface_hub writes them: the index last."""

import json
from pathlib import Path

from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file

from tests.training.software.net import Net, loss_of
from tests.training.software.run import Run, loop


def train(run: Run) -> None:
    net = Net()

    def save(step: int) -> None:
        folder = run.folder / f"step_{step}"
        folder.mkdir(exist_ok=True)
        save_torch_state_dict(net.flat(step), folder, max_shard_size="60KB")

    def load(path: str) -> int:
        names = json.loads((Path(path) / "model.safetensors.index.json").read_text())["weight_map"].values()
        tensors = {}
        for name in sorted(set(names)):
            tensors |= load_file(Path(path) / name)
        return net.take_flat(tensors)

    loop(run, load, net.advance, save)
    run.mark("loss", loss_of(net.model).hex())
