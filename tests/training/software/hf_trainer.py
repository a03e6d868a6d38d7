"""Hugging Face's Trainer with a Llama of two small layers, made on the spot. Keeps its two newest checkpoints."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerControl, TrainerState

from tests.training.software.run import EVERY, STEPS, Run

torch.set_num_threads(1)
CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=32, attention_dropout=0.1,
)  # fmt: skip
chance = torch.Generator().manual_seed(3)
TEXTS = [{"input_ids": row, "labels": row} for row in torch.randint(0, 64, (64, 16), generator=chance)]


class Marks(TrainerCallback):
    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_begin(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if self.run.start:
            self.run.mark("loaded", state.global_step)

    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if state.global_step % EVERY == 0:
            self.run.mark("saving", state.global_step)

    def on_save(self, args: object, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self.run.mark("saved", state.global_step)


def train(run: Run) -> None:
    torch.manual_seed(1)
    model = LlamaForCausalLM(CONFIG)
    arguments = TrainingArguments(
        output_dir=str(run.folder), max_steps=STEPS, save_steps=EVERY, save_total_limit=2, seed=5, use_cpu=True,
        per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=TEXTS, callbacks=[Marks(run)])
    trainer.train(resume_from_checkpoint=run.start or None)
    model.eval()
    rows = torch.stack([text["input_ids"] for text in TEXTS])
    with torch.no_grad():
        run.mark("loss", float(model(input_ids=rows, labels=rows).loss).hex())
