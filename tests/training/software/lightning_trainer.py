"""Lightning's Trainer with its ModelCheckpoint, which moves a finished file into its place.

As on a cluster, the temporary folder is on another file system than the checkpoints: then the move is a copy.
"""

import tempfile
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from tests.training.software.net import batch, loss_of, network
from tests.training.software.run import EVERY, STEPS, Run

warnings.filterwarnings("ignore")
TEMPORARY = tempfile.TemporaryDirectory(dir="/dev/shm")  # goes with the process that imported this
tempfile.tempdir = TEMPORARY.name


class Module(LightningModule):
    """Lightning does not keep the generator's state: each step's is its own."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model = network()
        self.run = run
        self.saving = 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        self.run.mark("loaded", checkpoint["global_step"])

    def on_train_batch_start(self, _: object, index: int) -> None:
        self.tell_saved()

    def training_step(self, _: object) -> torch.Tensor:
        torch.manual_seed(self.global_step)
        inputs, wanted = batch(self.global_step + 1)
        return torch.nn.functional.mse_loss(self.model(inputs), wanted)

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        self.saving = self.global_step
        self.run.mark("saving", self.saving)

    def on_train_end(self) -> None:
        self.tell_saved()

    def tell_saved(self) -> None:
        """ModelCheckpoint is the last of a batch's callbacks: what comes after it comes after the write."""
        if self.saving:
            self.run.mark("saved", self.saving)
            self.saving = 0


def close() -> None:
    """For a process that will not come to its end."""
    TEMPORARY.cleanup()


def train(run: Run) -> None:
    module = Module(run)
    keep = ModelCheckpoint(dirpath=run.folder, filename="{step}", every_n_train_steps=EVERY, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu", max_steps=STEPS, callbacks=[keep], logger=False, enable_progress_bar=False,
        enable_model_summary=False, barebones=False, default_root_dir=run.folder,
    )  # fmt: skip
    trainer.fit(module, DataLoader(range(STEPS), batch_size=1), ckpt_path=run.start or None)
    run.mark("loss", loss_of(module.model).hex())
